"""One file per format of recordings, with its `KIND`; what lies here is found, not listed."""
