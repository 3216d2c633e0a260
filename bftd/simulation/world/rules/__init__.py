"""The rules that have to hold in every simulated world: each names itself where it does not."""
