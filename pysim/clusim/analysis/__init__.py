"""Analyses of results, without running, drawing or printing."""
