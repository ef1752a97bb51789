"""Auditing and inspecting v2 data of Cherry Studio: libraries, profiles, bases, index files, packs."""
