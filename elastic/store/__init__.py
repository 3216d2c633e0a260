"""Checkpoints on disk: one folder per trainer, which is the user's alone, with one writer at a time."""
