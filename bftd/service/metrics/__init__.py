"""The daemon's metrics for Prometheus: counters and histograms measured where things happen, gauges of its state."""
