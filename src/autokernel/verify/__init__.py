"""Whole-model correctness and speed against every baseline."""
