"""Files and folders: where a run may write, durable changes, links, sources and archives, SQLite files."""
