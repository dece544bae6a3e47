"""Readers of recordings: GOAL, HLO, SimAI and AICB, ASTRA-sim, DeepSpeed, profiler plugins."""
