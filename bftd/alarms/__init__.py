"""Telling the site's own command of what is wrong, `[notify] command`."""
