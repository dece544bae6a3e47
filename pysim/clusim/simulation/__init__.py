"""One run: what is asked for, what runs, how finely, and what came out."""
