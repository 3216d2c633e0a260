"""Tools that ask what bftd would have gained on a site's past: traces, replays, advice and reports."""
