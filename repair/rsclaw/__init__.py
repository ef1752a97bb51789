"""Changes of a knowledge base of rsclaw: files and caches, never the database."""
