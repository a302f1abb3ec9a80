"""How networks learn from slides, and models from answers: patches, dense lessons, mining, packaging, calibration."""
