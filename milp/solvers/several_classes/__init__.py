"""Solvers for several classes of nodes."""
