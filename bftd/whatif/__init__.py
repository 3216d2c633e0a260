"""What bftd would have made of a site's past: traces, replays, advice and reports."""
