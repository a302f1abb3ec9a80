"""Pages that are files: they open offline and are written whole or not at all."""
