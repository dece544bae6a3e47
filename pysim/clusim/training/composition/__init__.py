"""Training steps estimated from parts that the engine simulated before."""
