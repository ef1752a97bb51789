"""From one layout to another: one package per journey, in the stages read → plan → carry → verify → publish."""
