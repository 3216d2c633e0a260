"""Simulated machines: time, processes, threads, network and disks, with one seeded source of randomness."""
