"""Synergy (Mohan et al., OSDI 2022): orders and packers of jobs on servers that share GPUs, CPUs and memory."""
