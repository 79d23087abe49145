"""Federations between organisations, on NVIDIA FLARE.

The training loop, the workers and the run folder are those of every other run; this package carries
their messages between machines.

- `agreement`, `package`: what the parties agreed on, the code included
- `messages`: what crosses, and what it must look like
- `network`: who may say what to whom
- `server`, `site`: the two sides of a run
- `provisioning`: making and changing a federation
- `operations`: running it
- `ledger`, `chain`, `locks`: what both sides write down, sealed line by line; one process at a time

NVFlare starts `server.controller`, `site.executor` and `network.signer`, and imports nothing else of ours.
"""

from __future__ import annotations

import os

# TLS 1.3 alone. gRPC cannot be told a lowest version, but it can be told which ciphers TLS 1.2 may use: this one
# needs a secret that both sides were given before, and nobody has any. TLS 1.3 has ciphers of its own. gRPC reads
# this when it is imported.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
