"""What runs a call and how long it takes: the choice, the communicators of a job, launches."""
