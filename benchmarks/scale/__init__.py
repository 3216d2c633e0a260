"""The daemon of a large cluster: its ticks, its answers to many drivers and users, and those who harm it."""
