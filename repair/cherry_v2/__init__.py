"""Changing v2 data of Cherry Studio."""
