"""The dense engine: detectors over whole slides, from tiles of pixels to points, in bounded memory.

`settings`, `streaming` and `onnx` work without torch.
"""
