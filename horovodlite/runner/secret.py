"""Keys, and messages that only their owners can have written.

Source: ``horovod.runner.common.util.secret``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

__all__ = ["check_digest", "compute_digest", "make_secret_key"]

SECRET_LENGTH = 32  # bytes
DIGEST_LENGTH = 32  # bytes, of SHA-256
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"


def make_secret_key() -> bytes:
    """Returns a new key. Local."""
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """Returns the HMAC-SHA-256 of a message. Local."""
    return hmac.new(key, message, hashlib.sha256).digest()


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    """Returns whether the digest is that of the message, in constant time. Local."""
    return hmac.compare_digest(compute_digest(key, message), digest)
