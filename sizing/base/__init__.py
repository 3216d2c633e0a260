"""Estimates with their origin, parallel splits and readers of JSON, which all of sizing uses. Pure."""
