"""One run: request, plan, granularity and result."""
