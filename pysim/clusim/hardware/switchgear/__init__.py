"""One file per family of switches, each with its `SWITCHES`."""
