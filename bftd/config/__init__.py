"""The configuration: its keys, their checks, and the hours of harvesting."""
