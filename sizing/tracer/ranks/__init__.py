"""Simulated other ranks of a training, and the exchanges with them."""
