"""Saved states on disk: a folder a trainer, which is the user's alone, with one writer at a time."""
