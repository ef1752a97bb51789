"""The stages of every migration: :mod:`.survey` and :mod:`.plan` plan, :mod:`.carry` carries and verifies,
:mod:`.publish` puts in place, :mod:`.run` runs them; :mod:`.source` says what a layout brings along.
"""
