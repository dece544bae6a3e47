"""Questions asked of a result; nothing here runs, draws or prints."""
