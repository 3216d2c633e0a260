"""The simulated world: the real daemon and the real drivers in one process, on simulated hosts, in simulated time."""
