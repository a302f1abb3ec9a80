"""Slides searched, reviewed, counted and reported: a slide's folder is one record."""
