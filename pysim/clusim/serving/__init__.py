"""Serving of language models: prefill and decode steps on a system."""
