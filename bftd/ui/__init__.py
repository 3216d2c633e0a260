"""The terminal's views: the status and the live screen."""
