"""JSON objects over a pipe, each after its length."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

HEAD = 4
"""Bytes of the length, big-endian."""


def pack(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(HEAD) + body


def read_frame(source: BinaryIO) -> dict[str, Any] | None:
    """The next object; None where the pipe has ended."""
    head = source.read(HEAD)
    if len(head) < HEAD:
        return None
    body = source.read(int.from_bytes(head))
    found: dict[str, Any] = json.loads(body)
    return found


__all__ = ["HEAD", "pack", "read_frame"]
