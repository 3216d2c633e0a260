"""The reading of Slurm's answers: nodes, jobs and settings as types."""
