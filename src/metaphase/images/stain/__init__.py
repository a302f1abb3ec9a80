"""Stains as numbers: separate them, vary them for training, align them between laboratories.

Import the part you need (`metaphase.images.stain.deconvolution`, `.standardisation`, `.pictures`, `.guess`:
NumPy alone; `.augmentation`: torch), so that what needs no torch starts fast.
"""
