"""Reading Slurm: one snapshot of nodes and jobs, its settings, and the resources that a job used."""
