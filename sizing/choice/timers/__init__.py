"""Timers of a step on a number of GPUs, the best informed first."""
