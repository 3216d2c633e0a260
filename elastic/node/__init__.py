"""The processes inside a pilot: its agent, and the node process, which keeps torch imported and forks workers."""
