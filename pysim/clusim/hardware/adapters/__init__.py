"""One file per vendor of network adapters, each with its `NICS` and the identities they have, `PCI_IDS`."""
