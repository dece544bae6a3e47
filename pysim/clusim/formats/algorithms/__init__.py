"""Collective algorithms that other tools wrote down, as schedules."""
