"""Patches on disk, balanced batches, and the one loop that trains CNN1 to CNN5."""
