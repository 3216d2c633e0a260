"""The simulated world: the real daemon, drivers and agents in one process, on simulated hosts, in simulated time."""
