"""The stages of every migration, which all source layouts share.

:mod:`.survey` and :mod:`.plan` plan the bases, :mod:`.base_writer` writes and verifies them, :mod:`.publication` moves
them into the target, and :mod:`.run` calls these stages. :mod:`.source` is the interface of a source layout.
"""
