"""regraft carries a knowledge base to a new layout with its vectors alive, and keeps it healthy there."""

__version__ = "0.1.0"
