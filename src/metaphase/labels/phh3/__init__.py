"""Mitoses of PHH3 slides: brown candidates, artefact network (CNN1), labels, mitosis network (CNN2).

Import the part you need: `.config`, `.survey`, `.candidates`, `.cases` and `.sampling` are free of torch;
`.training` and `.classification` bring it.
"""
