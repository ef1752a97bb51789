"""How long tests wait."""

#: How long until what does not come counts as never coming, in seconds: no limit that a loaded machine reaches.
NEVER_SECONDS = 1_800
