"""The core's types: pool, trainers, leases, events, decisions, and the draft of a step."""
