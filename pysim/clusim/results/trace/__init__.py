"""HDF5 traces: writer and reader of complete and partial files; only here is h5py used."""
