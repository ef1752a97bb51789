"""What a command says: documents, messages, pages, progress."""
