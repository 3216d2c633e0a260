"""Solvers for one class of nodes: only the number of nodes of each trainer matters."""
