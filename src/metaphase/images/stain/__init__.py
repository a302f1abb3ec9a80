"""Stains as numbers: separate them, vary them for training, align them between laboratories.

Import the part you need (`augmentation` and `gallery` bring torch), so that what needs no torch starts fast.
"""
