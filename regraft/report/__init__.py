"""What commands return and print: JSON documents, notices, report pages, progress bars."""
