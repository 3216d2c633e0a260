"""The configuration: its keys, its file, and the hours of harvesting."""
