"""Graphs, federations of graphs, and what can be said about them."""
