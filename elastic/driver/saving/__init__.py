"""Saves: their interval, and their way to the store."""
