"""Image operations: tissue, stain, focus and colour."""
