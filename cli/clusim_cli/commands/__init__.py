"""One file per sub-command, with its click command ``command``; what lies here is found, not listed."""
