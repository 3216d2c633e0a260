"""The clients of Slurm, by its commands or by pyslurm: snapshots, settings, ended jobs, and what Slurm hides."""
