"""The analysis of recorded runs: intervals, causes, the figures of a recipe, and the tables made from them."""
