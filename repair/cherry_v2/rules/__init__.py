"""What ``repair`` does about each finding in v2 data."""
