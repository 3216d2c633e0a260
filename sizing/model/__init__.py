"""The user's training step as data: its configuration, or a trace of it that was made in a child process."""
