"""Estimates of cells beside real ranks on this machine's CPU, and the cost of profiling."""
