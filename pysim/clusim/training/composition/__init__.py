"""Training steps estimated from simulated parts."""
