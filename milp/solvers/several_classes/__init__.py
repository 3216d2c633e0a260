"""The solver for several classes of nodes, one a trainer."""
