"""Plan changes of the v2 data of Cherry Studio."""
