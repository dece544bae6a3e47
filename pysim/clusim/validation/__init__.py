"""Measured rows of collectives and of training steps, predicted and scored."""
