"""Audit and inspect v1 data of Cherry Studio."""
