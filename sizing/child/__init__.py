"""The child process that runs the user's step under the user's Python, and the cache of its answers."""
