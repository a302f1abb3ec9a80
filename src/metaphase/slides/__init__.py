"""Pixels at a physical resolution from any slide, tile plans, a prefetching reader and a pyramid writer."""
