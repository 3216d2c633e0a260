"""The sensitivity of a job to CPUs and memory (Synergy): its matrix, and the search for its knee. Pure."""
