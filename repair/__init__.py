"""Repairs of what checks find. Not used by migrations.

A repair may call checks, and migrators if it migrates rows of another layout.
"""
