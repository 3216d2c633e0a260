"""Synergy: its packers and simulated rounds on public matrices, its search, and loaders profiled for real."""
