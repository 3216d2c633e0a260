"""Measurements that need a GPU: steps, stages profiled alone, and elastic training."""
