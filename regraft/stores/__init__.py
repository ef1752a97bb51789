"""What kind of store a path is, and whether it may be changed."""
