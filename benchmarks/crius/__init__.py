"""Crius against its baselines on simulated clusters, the time of its decisions, and its search on public logs."""
