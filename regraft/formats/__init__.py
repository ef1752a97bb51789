"""One module or package per on-disk format: read it, write it if it is ours to write, nothing else."""
