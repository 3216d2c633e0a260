"""Copies of a script's state in memory, and their files."""
