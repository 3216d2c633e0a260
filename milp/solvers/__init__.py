"""The solvers, in folders by what they work on; `registry` lists them all."""
