"""Which GPUs end a job earliest: cells of a centre, how long they run, when Slurm would start them."""
