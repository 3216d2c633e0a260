"""The functions of the library, which `import sizing` gives: fit, choose, estimate, profile_cpu and learn."""
