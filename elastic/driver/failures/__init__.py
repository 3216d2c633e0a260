"""Failures: their causes, and the reactions to them."""
