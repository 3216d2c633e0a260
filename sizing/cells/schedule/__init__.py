"""Which cell each job of a cluster gets (Crius, section 6): the search, and the policy around it."""
