"""Authentication of the API's callers, and their permissions."""
