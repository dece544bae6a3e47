"""Studies of many runs: sweeps, what-if, crossover."""
