"""Putting right what checks find. A repair may call checks; nothing here runs during a migration."""
