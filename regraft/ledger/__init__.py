"""What regraft records of its runs in a store, and how it writes so that a stopped run can be settled."""
