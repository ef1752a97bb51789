"""Child processes, how they are started, and how a run is stopped."""
