"""The dense engine: detectors over whole slides, from tiles of pixels to points, in bounded memory.

Who computes a network, where, and why (measured: docs/results.md, speed of the search):

    onnx.OnnxEngine           `lite`, `residual`   CPU: 8 bits and float32; `.onnx` models, without torch
    cell_gpu.LiteDetector     `lite`               GPU: kernels that keep a block's wide features on the chip
    layers.PlainDetector      `lite`               GPU that these kernels do not fit; CPU without ONNX Runtime
    layers.PlainDetector      `residual`           GPU; CPU without ONNX Runtime
    gpu.GpuDetector           the paper's          GPU: kernels for its 14 x 14 layer in Fourier's form
    layers.PortableDetector   the paper's          CPU: that form is several times faster than ONNX Runtime
    layers.ForeignDetector    of other packages    anywhere, as PyTorch computes them
    layers.PatchNetwork       classifiers          anywhere, window by window

The first is an engine by itself. The others give `engine.Engine` the logits of tiles
(`arithmetic.PreparedNetwork`), in the fastest arithmetic that agrees with float32. Both engines derive from
`searching.TileEngine`. `settings`, `searching`, `streaming` and `onnx` work without torch.
"""
