"""Jobs of all commands: times of their calls."""
