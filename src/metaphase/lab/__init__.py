"""A laboratory's workflow: from a folder of slide pairs to a packaged model.

`folder` is the layout and `lab.toml`, `pairing` makes the manifest, `label_steps` and
`detector_steps` list what there is to do and by whom (with `parts`), `running` runs them and reports the
status.
"""
