"""The cost of harvesting to a regular queue: one stream of jobs on a private cluster, without bftd (A) and with it (B).

docs/evidence/impact.md tells the method and how a centre repeats it.
"""
