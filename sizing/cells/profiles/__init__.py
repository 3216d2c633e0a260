"""Profiles of stages that were run on one device, and their cache."""
