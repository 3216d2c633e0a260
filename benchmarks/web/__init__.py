"""A daemon with a web page on a cluster that is made up, and the time until a browser shows it."""
