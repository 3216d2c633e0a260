"""All that knows Slurm: reading its state, starting pilots, and a private cluster to try it on."""
