"""Files that all of sizing uses: those of a centre, the caches of a user, and the jobs that ran."""
