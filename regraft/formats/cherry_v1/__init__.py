"""What Cherry Studio v1 writes: its state, vector files, backups and profiles."""
