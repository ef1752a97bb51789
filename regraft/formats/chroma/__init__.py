"""Reads folders of Chroma: the database, and the files of its vector segments (``docs/formats/chroma.md``)."""
