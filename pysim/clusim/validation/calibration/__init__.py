"""Figures of a system that fit its measured collectives."""
