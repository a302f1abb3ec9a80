"""Paired H&E and PHH3 slides with exact truth, from many virtual laboratories."""
