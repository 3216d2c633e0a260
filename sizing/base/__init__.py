"""Estimates with their origin, parallel splits, and fields of files, which all of sizing uses."""
