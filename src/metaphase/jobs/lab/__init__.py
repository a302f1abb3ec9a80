"""A laboratory's own detector as one thread: from a folder of slide pairs to a packaged model.

`folder` is the layout and `lab.toml`, `pairing` makes the manifest, `steps` lists what there is to do and by
whom, `answers` says when people have answered enough, `running` goes on and tells where it stands.
"""
