"""Traces from Slurm's accounting: the idle nodes of the past, from jobs, events and reservations."""
