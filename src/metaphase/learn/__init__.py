"""How networks learn from slides and answers: patches, dense lessons, mining, packaging, calibration."""
