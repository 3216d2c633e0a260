"""Running of solvers: several in turn under a time limit, and engines in a process that can be killed."""
