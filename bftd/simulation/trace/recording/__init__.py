"""Traces recorded from a live cluster: a gzip member a poll."""
