"""Pilots: the conditions of their start, and their submission."""
