"""Slurm's backfill planner recorded, and bftd's copy of it replayed beside the record."""
