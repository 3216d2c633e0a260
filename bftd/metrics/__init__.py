"""What Prometheus reads of the daemon: counters and histograms measured where things happen, gauges of its state."""
