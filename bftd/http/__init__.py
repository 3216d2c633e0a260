"""The API: identifies callers, serves their requests, and provides a client for commands."""
