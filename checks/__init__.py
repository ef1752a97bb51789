"""Looking without touching: what a store holds and how healthy it is."""
