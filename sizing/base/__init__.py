"""Estimates with their origin, and readers of files, which all of sizing uses."""
