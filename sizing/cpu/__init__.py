"""How many CPUs and how much memory a training job needs beside its GPUs (Synergy, Mohan et al., OSDI 2022)."""
