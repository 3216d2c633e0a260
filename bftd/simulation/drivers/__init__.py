"""Simulated drivers and trainers, for replays and for shadow mode."""
