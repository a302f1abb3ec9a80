"""Mitoses of PHH3 slides: brown candidates, artefact network (CNN1), labels, mitosis network (CNN2).

Import the part you need: `candidates` and `cases` are free of torch; `networks` brings it.
"""
