"""Putting right what checks find; nothing here runs during a migration.

A repair may call checks, and migrators where it carries rows of another layout.
"""
