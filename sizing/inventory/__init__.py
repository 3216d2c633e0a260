"""The GPUs of a centre: the capabilities of each type, and their nodes."""
