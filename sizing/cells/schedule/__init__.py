"""The choice of a cell for each job of a cluster (Crius, section 6): the search, and the policy around it."""
