"""Ways to cut one graph into clients, one module each; see `fedspray.partitioners.base`."""
