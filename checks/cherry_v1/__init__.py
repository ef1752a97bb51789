"""Auditing and inspecting v1 data of Cherry Studio."""
