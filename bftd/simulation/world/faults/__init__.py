"""The faults of a simulated world: their kinds, a history of them, and the shortest one that still fails."""
