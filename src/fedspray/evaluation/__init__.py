"""Metrics, computed as sums first and divisions last, and the choice of the reported round."""
