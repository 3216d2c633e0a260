"""Steps and stages that are really run, and timed."""
