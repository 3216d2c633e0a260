"""The API: who calls, what may be asked, and a client for commands."""
