"""The figures and tables of BFTrainer's paper (Liu et al.) once more, from replays of its own trace."""
