"""The submission of pilots: each granted at once or not at all, with queries of Slurm that they share."""
