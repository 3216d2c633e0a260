"""Synergy's OPT: the packing with the most throughput, by linear and integer programs."""
