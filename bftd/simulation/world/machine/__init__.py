"""A simulated machine room: time, processes, threads, network and disks, of one seeded source of randomness."""
