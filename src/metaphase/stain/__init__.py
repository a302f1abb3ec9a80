"""Stains as numbers: separate them, vary them for training, align them between laboratories.

Import the part you need (`metaphase.stain.deconvolution`, `.standardisation`, `.guess`: NumPy alone;
`.augmentation` and `.torch_deconvolution`: torch), so that what needs no torch starts fast.
"""
