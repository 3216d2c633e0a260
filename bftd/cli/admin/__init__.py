"""Commands of administrators: a site's settings, and private clusters."""
