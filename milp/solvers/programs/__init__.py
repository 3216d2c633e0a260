"""The allocation problem as a mixed-integer linear program, and the engines that solve one."""
