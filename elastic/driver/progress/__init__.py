"""A trainer's progress: reported, printed or estimated."""
