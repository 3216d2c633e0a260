"""The process in which the user's own step is traced: runs under his Python, and imports nothing of ours but itself."""
