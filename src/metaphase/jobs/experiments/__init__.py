"""Experiments 1 to 7 of the paper, and what each part of the method contributes."""
