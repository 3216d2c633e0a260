"""The process that traces the user's own step: it runs under the user's Python and imports only this package."""
