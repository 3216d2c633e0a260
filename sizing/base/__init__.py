"""Estimates with their origin, plans, and readers of files, which all of sizing uses."""
