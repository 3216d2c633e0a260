"""bftd: a Slurm backfill daemon that lends idle nodes to elastic training jobs."""

__version__ = "0.1.0"
