"""Commands that ask the running daemon, or steer it."""
