"""Federations between organisations, on NVIDIA FLARE.

The training loop, the workers and the run folder are those of every other run; this package carries
their messages between machines. `controller` and `executor` are the only two classes that NVFlare
starts, and with `kits`, `session` and `courier` the only modules that import it (when they are used).
"""
