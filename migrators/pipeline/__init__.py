"""The stages of every journey: :mod:`.work` and :mod:`.plan` plan, :mod:`.carry` carries and verifies, :mod:`.publish`
puts in place, :mod:`.run` runs them; :mod:`.journey` says what a layout brings along.
"""
