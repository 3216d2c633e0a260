"""The solvers, in folders by the problems they solve: `registry` lists them all, `solving` solves with them."""
