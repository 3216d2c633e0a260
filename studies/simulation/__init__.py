"""A simulated GPU cluster: the effect of schedulers on the jobs of a trace, by estimated step times."""
