"""What a cached KV block is known by. Two blocks with one key hold the same numbers; anything that could
change the numbers, or who may see them, is a field."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NewType

from lorry.ids import AdapterKey, BaseDigest

BlockHash = NewType("BlockHash", bytes)
"""32 bytes. Minted by ``root_hash`` and ``block_hash`` alone."""

_DOMAIN = b"lorry-prefix-key-v2"


@dataclass(frozen=True, slots=True)
class RopeKey:
    """The effective rotary configuration. ``scaling``: its parameters by name, sorted, empty for plain."""

    kind: str
    theta: float
    scaling: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """What all blocks of one chain have in common. A block's hash is that of its parent (of this key, for the first)
    and its own ``page_tokens`` ids, so it covers every token from position 0.

    ``adapter`` is a content digest and whose copy of it, never a name or slot, and None is the base. ``tenant_salt`` is
    derived on the server; ``cache_scope`` narrows within it. ``owner`` is empty, or makes the chain one request's own.
    """

    base: BaseDigest
    quantization: str
    tokenizer_sha256: str
    kv_dtype: str
    kv_scales: tuple[float, ...]
    rope: RopeKey
    page_tokens: int
    engine_build: str
    adapter: AdapterKey | None
    tenant_salt: bytes = field(repr=False)
    cache_scope: str
    owner: str = ""


def root_hash(key: PrefixKey) -> BlockHash:
    """SHA-256 over the fields in order, each as name, type tag, length, bytes: no two keys read the same."""
    digest = hashlib.sha256(_framed(b"k", _DOMAIN))
    for entry in fields(key):
        digest.update(_framed(b"n", entry.name.encode()))
        digest.update(_encoded(getattr(key, entry.name)))
    return BlockHash(digest.digest())


def block_hash(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """SHA-256 over the parent's 32 bytes and the ids, 8 bytes each: lengths are known, so nothing needs framing."""
    return BlockHash(hashlib.sha256(parent + struct.pack(f">{len(token_ids)}q", *token_ids)).digest())


def _framed(tag: bytes, body: bytes) -> bytes:
    return tag + len(body).to_bytes(8, "big") + body


def _encoded(value: object) -> bytes:
    if value is None:
        return _framed(b"0", b"")
    if isinstance(value, bytes):
        return _framed(b"b", value)
    if isinstance(value, str):
        return _framed(b"s", value.encode())
    if isinstance(value, float):
        return _framed(b"f", struct.pack(">d", value))
    if isinstance(value, int):
        return _framed(b"i", str(value).encode())
    if isinstance(value, RopeKey):
        return _encoded((value.kind, float(value.theta), value.scaling))
    if isinstance(value, Sequence):
        return _framed(b"t", b"".join(_encoded(item) for item in value))
    raise TypeError(f"a prefix key cannot hold {type(value).__name__}: its encoding would be a guess")


__all__ = ["BlockHash", "PrefixKey", "RopeKey", "block_hash", "root_hash"]
