"""Drivers and trainers that are not there, for replays and for shadow mode."""
