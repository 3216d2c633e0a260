"""Estimates of sizing held to truth: memory and times of steps traced, by formula, measured and published."""
