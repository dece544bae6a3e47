"""Results of runs: counters, times, histories, diagnosis, HDF5 traces."""
