"""Speed and memory of a migration, held against the least that any program would have to do."""
