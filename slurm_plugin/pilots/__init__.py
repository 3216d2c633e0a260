"""Pilots: the conditions of their start."""
