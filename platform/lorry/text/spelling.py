"""What single ids stand for, as logprobs show them: text, and the bytes that it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lorry.text.pieces import byte_level_bytes
from lorry.text.tokenizer import Tokenizer

SPELLED_BYTES_MAX = 128
"""Longer tokens, which a tenant may have put into a tokenizer, are named by their number."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """``data``: what the id adds to a text, a part of a character perhaps; None where that is nothing (special and
    unknown ids) or too long to show. ``name``: for people."""

    name: str
    data: bytes | None


def spell(tokenizer: Tokenizer, ids: Iterable[int]) -> list[Spelling]:
    """In their order. At the start of a text some tokenizers drop a space that ``data`` has."""
    return [_spell(tokenizer, token_id) for token_id in ids]


def _spell(tokenizer: Tokenizer, token_id: int) -> Spelling:
    piece = tokenizer.token(token_id)
    if piece is None:
        name = tokenizer.name(token_id)
        return Spelling(name if name and len(name.encode()) <= SPELLED_BYTES_MAX else f"token_id:{token_id}", None)
    rules = tokenizer.rules
    if rules.byte_level:
        data = byte_level_bytes(piece)
    elif (raw := rules.raw_byte(piece)) is not None:
        data = bytes([raw])
    else:
        data = rules.text(piece, first=False).encode()
    if len(data) > SPELLED_BYTES_MAX:
        return Spelling(f"token_id:{token_id}", None)
    try:
        return Spelling(data.decode(), data)
    except UnicodeDecodeError:
        return Spelling("bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data)


__all__ = ["SPELLED_BYTES_MAX", "Spelling", "spell"]
