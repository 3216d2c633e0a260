"""The simulated slurmctld held against recordings, and what harvesting costs the queue on many streams of jobs."""
