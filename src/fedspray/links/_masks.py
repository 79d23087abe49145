"""The arithmetic of secure sums: fixed-point numbers modulo 2^64, masks that cancel, secrets in shares.

Every primitive is a library's: X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305 of `cryptography`, and Shamir's
secret sharing of PyCryptodome.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from torch import Tensor

from fedspray.errors import InputError

Words = NDArray[np.uint64]
"""Numbers modulo 2^64."""
SECRET = 16
"""Bytes of a secret that is shared, and of each of its shares."""
KEY = 32
"""Bytes of a public key."""
_NONCE = 12


def to_fixed(name: str, value: Tensor, bits: int, parties: int) -> Words:
    """Numbers as multiples of 2^-bits, modulo 2^64; refuses those whose sum over ``parties`` could wrap around."""
    scaled = value.detach().double().numpy().ravel() * 2.0**bits
    limit = 2.0**63 / parties
    wrong = scaled[~(np.abs(scaled) < limit)]
    if wrong.size:
        raise InputError(
            f"secure-sum: {name} holds {wrong[0] / 2.0**bits:g}, but {parties} clients with {bits} bits after the "
            f"point can add numbers below {limit / 2.0**bits:.3g} only: choose fewer bits"
        )
    words: Words = np.rint(scaled).astype(np.int64).view(np.uint64)
    return words


def from_fixed(words: Words, bits: int) -> Tensor:
    """The inverse of `to_fixed`, in double precision."""
    return torch.from_numpy(words.view(np.int64).astype(np.float64) / 2.0**bits)


def stream(key: bytes, length: int) -> Words:
    """Words that nobody can tell from random ones without the key; every key is used for one stream."""
    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * length)), dtype="<u8").astype(np.uint64, copy=False)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose."""
    return HKDF(SHA256(), 32, salt=None, info=purpose).derive(secret)


def key_from(seed: bytes) -> X25519PrivateKey:
    """The private key that a shared secret stands for."""
    return X25519PrivateKey.from_private_bytes(derived(seed, b"fedspray mask key"))


def common_key(own: X25519PrivateKey, other: bytes, purpose: bytes) -> bytes:
    """What two parties know and nobody else does."""
    return derived(own.exchange(X25519PublicKey.from_public_bytes(other)), purpose)


def pair_mask(own: X25519PrivateKey, other: bytes, purpose: bytes, length: int, *, adds: bool) -> Words:
    """The mask that one of two parties adds and the other subtracts."""
    mask = stream(common_key(own, other, purpose), length)
    return mask if adds else np.negative(mask)


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of a secret, the first one's place being 1."""
    from Crypto.Protocol.SecretSharing import Shamir

    return [bytes(share) for _, share in sorted(Shamir.split(threshold, count, secret))]


def join_secret(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from enough shares by place."""
    from Crypto.Protocol.SecretSharing import Shamir

    return bytes(Shamir.combine(list(shares.items())))


def seal(key: bytes, content: bytes) -> bytes:
    """Encrypted and authenticated."""
    nonce = os.urandom(_NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """The inverse; raises `InvalidTag` if anything was changed."""
    return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
