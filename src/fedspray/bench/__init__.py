"""Benchmarks: what a round costs, beside its floor."""
