"""The waiting jobs that Slurm's backfill scheduler would start now if no pilot were there. Pure."""
