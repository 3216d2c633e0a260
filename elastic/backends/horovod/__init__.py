"""Elastic Horovod as a back-end."""
