"""Run all repairs of a store as one run, and recommend the commands that fix findings."""
