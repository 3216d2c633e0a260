"""The API: identifies callers and serves their requests."""
