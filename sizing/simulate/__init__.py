"""A GPU cluster that is not there: what schedulers would do with jobs of a trace, by estimated step times."""
