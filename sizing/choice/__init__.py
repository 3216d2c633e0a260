"""The choice of GPUs that end a job earliest: cells of a centre, their run times, and Slurm's start times."""
