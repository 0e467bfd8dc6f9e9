"""Encryption of private values, so that they can be erased from a log that never changes.

A private value is stored only as ciphertext, under a random key of its run. The key lies in a row of its own, which
erasing overwrites in place with zeros: from then on the ciphertext stands in the log, hashed and chained as before, and
nobody can read it (crypto-shredding; NIST SP 800-88 calls it cryptographic erase). Key and ciphertext lie in one file:
this is a way to erase, and no protection against whoever reads the store.

The cipher is AES-SIV (RFC 5297): the same value at the same place has the same ciphertext, so that a repeated append is
still the same append, and a value that was changed, or moved to another event, isn't decrypted.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from .errors import MissingExtra
from .limits import key_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

ERASED_KEY: Final = bytes(key_bytes)
"""What an erased key is overwritten with."""
_BLOB: Final = b"\0rj"
"""How an encrypted blob begins; any other is JSON, which never begins with a NUL."""


def new_key() -> bytes:
    """Return a random key. Raises MissingExtra where the library for it isn't installed."""
    _cipher(key := secrets.token_bytes(key_bytes))
    return key


def encrypt(key: bytes, text: bytes, place: Sequence[bytes]) -> bytes:
    """Return the ciphertext of a text that isn't empty, bound to a place. Raises MissingExtra."""
    return _cipher(key).encrypt(text, list(place))


def decrypt(key: bytes, box: bytes, place: Sequence[bytes]) -> bytes:
    """Return the text of a ciphertext. Raises ValueError if it isn't one of this key and place; MissingExtra."""
    cipher = _cipher(key)
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(box, list(place))
    except InvalidTag:
        raise ValueError("it can't be decrypted with the key of its run") from None


def encrypt_blob(key: bytes, run_id: str, text: bytes) -> bytes:
    """Return the bytes of a blob that says of itself whose key opens it."""
    name = run_id.encode()
    return _BLOB + bytes((len(name),)) + name + encrypt(key, text, (b"blob", name))


def blob_run(body: bytes) -> str | None:
    """Return the run whose key opens a blob; None for one that isn't encrypted."""
    if not body.startswith(_BLOB):
        return None
    return body[len(_BLOB) + 1 : _text_at(body)].decode(errors="replace")


def decrypt_blob(key: bytes, body: bytes) -> bytes:
    """Return the text of an encrypted blob. Raises ValueError."""
    start = _text_at(body)
    return decrypt(key, body[start:], (b"blob", body[len(_BLOB) + 1 : start]))


def _text_at(body: bytes) -> int:
    return len(_BLOB) + 1 + body[len(_BLOB)]


@lru_cache(maxsize=64)
def _cipher(key: bytes) -> AESSIV:
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError as error:
        raise MissingExtra("private values", "cryptography", "private") from error
    return aead.AESSIV(key)
