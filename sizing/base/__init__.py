"""Estimates with their origin, parallel splits, and files, which all of sizing uses."""
