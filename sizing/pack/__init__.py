"""Jobs on servers with GPUs, CPUs and memory: who gets how much of what, and where (Synergy, section 4)."""
