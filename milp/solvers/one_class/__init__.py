"""Solvers for one class of nodes: only how many each trainer gets matters."""
