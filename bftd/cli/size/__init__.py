"""bft size: what a regular job should ask Slurm for."""
