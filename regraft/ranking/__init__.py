"""How each system ranks what a search finds."""
