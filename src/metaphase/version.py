"""The version of the package: here, so that nothing has to load its names."""

__version__ = "0.1.0"
