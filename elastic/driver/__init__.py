"""The process that owns one trainer: the user's own Slurm job on a service node, off the pool, for its whole life."""
