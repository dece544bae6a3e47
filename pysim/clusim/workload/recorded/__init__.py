"""Recorded jobs as schedules: `schedule.to_schedule` writes a recording, `emitter` its collectives."""
