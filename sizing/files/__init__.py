"""Files that sizing reads and keeps: texts that a user names, the user's caches, and the jobs that ran."""
