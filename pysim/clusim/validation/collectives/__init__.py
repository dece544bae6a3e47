"""Measured collectives, predicted and scored."""
