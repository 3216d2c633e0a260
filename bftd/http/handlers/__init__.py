"""Handlers of the API's endpoints."""
