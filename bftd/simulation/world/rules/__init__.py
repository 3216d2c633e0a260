"""The rules that have to hold in every simulated world: each names itself where it does not."""


class Violation(AssertionError):
    """A rule does not hold."""
