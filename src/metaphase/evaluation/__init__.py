"""Metrics for a critical reader, on anybody's detections: the three TUPAC tasks, tuning, observers."""
