"""HDF5 traces: `writer` makes them during a run, `reader` opens whole and broken ones. Only here is h5py used."""
