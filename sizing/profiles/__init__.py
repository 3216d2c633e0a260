"""Profiles of stages on one device, their cache, and files of communication tables."""
