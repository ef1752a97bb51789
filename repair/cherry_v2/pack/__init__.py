"""Packing: chosen bases of a store as one zip file, which is a library that any zip program unpacks.

Format: ``docs/formats/pack.md``.
"""

from repair.cherry_v2.pack.run import PackOptions, pack

__all__ = ["PackOptions", "pack"]
