"""The interface to Slurm: reading its state, starting pilots, and a private cluster for tests."""
