"""A simulated slurmctld, with bftd's pilots on its nodes or without: what harvesting costs a queue."""
