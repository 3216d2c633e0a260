"""Crius (Xue et al.): the choice of a cell for each job of a cluster, its baselines, and replays of search logs."""
