"""Alarms for the site's own command, `[notify] command`."""
