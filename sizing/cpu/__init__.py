"""The CPUs and memory that a training job needs besides its GPUs (Synergy, Mohan et al., OSDI 2022)."""
