"""Errors, commands and text, which all of bftd uses."""
