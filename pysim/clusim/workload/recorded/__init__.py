"""Recorded jobs as schedules: `schedule.to_schedule` writes what a recording says, `emitter` its collectives."""
