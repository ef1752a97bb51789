"""Inspecting the store of Cherry Studio's v2 preview."""
