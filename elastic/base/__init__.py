"""Errors, waiting times and a node's resources, which all of elastic uses."""
