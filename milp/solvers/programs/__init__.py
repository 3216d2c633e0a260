"""The allocation problem as a mixed-integer linear program, and its solvers."""
