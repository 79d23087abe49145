"""Graphs, federations and their statistics."""
