"""The decision core: `step(state, event) -> (state, actions)`, pure: no clock, file, socket or randomness."""
