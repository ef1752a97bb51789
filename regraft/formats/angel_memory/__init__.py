"""What AngelMemory writes: its database, its notes, its collections in Chroma."""
