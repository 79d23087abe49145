"""Metrics that are sums first and divisions last, and the selection of the reported round."""
