"""Cells (Crius), jobs with fixed GPU type, GPU count and pipeline stages: their speed and their best plans."""
