"""Where a slide has tissue, in H&E and in immunohistochemistry."""
