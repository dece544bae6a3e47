"""One file per vendor of processors, each with its `CPUS` and what its hosts cost, `HOST`."""
