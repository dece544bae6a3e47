"""Readers of topologies: lstopo, GraphML, InfraGraph, ASTRA-sim, SimAI, htsim; measurements of nvbandwidth."""
