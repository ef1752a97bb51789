"""What Cherry Studio v2 writes: catalogs, index files, folders, packs, and the values in them."""
