"""Packing: chosen bases of a store as one zip file, which is a library that any zip program unpacks.

Format: ``docs/formats/pack.md``.
"""

from repair.cherry_v2.pack.run import PackedBaseReport, PackOptions, PackReport, pack

__all__ = ["PackOptions", "PackReport", "PackedBaseReport", "pack"]
