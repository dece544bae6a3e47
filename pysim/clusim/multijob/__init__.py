"""Several jobs of different owners on one fabric: training, replays, collectives, storage and synthetic traffic."""
