"""Cells (Crius): a job with GPU type, GPU count and pipeline stages fixed; how fast it is, and which plan it runs."""
