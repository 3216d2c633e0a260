"""Packing of jobs on servers with GPUs, CPUs and memory: amounts and places for each job (Synergy, section 4)."""
