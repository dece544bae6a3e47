"""Jobs of all commands: model, matching, conversion to schedules, times of calls."""
