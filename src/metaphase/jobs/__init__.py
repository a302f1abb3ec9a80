"""Whole jobs made of stages: resumable, one slide or a cohort at a time."""
