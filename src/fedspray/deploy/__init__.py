"""Federations between organisations, on NVIDIA FLARE.

The training loop, the workers and the run folder are those of every other run; this package carries
their messages between machines. `controller`, `executor` and `signer` hold the only classes that NVFlare
starts, and with `kits`, `authority` and `session` they are the only modules that import it (when they are used).
"""

from __future__ import annotations

import os

# TLS 1.3 alone. gRPC cannot be told a lowest version, but it can be told which ciphers TLS 1.2 may use: this one
# needs a secret that both sides were given before, and nobody has any. TLS 1.3 has ciphers of its own. gRPC reads
# this when it is imported.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
