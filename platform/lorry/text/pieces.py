"""What each token id contributes to the text, by the tokenizer's own decoder.

Only decoders whose output can be had piece by piece, exactly, are served; any other is refused at load by
name. There are two families:

========================  =======================  ===================================================
family                    an id is                 joining
========================  =======================  ===================================================
byte level (GPT-2, BPE)   bytes                    concatenated, then UTF-8 with replacement
sentencepiece             text, or one raw byte    text as it is; a run of raw bytes is one unit: UTF-8 if
                                                   all of it is valid, else one U+FFFD a byte
========================  =======================  ===================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorry.errors import UnsupportedBase

_RAW_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_GROWTH = 4.0
"""Times as long as its token a text may become: replacements one after another multiply, in the engine."""


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: a byte that prints is itself, the others count up from U+0100."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in prints}
    others = (byte for byte in range(256) if byte not in set(prints))
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


_ALPHABET = _byte_level_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; a token with any character outside the alphabet is its own UTF-8."""
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


@dataclass(frozen=True, slots=True)
class PieceRules:
    """The decoder, read once. ``byte_level`` excludes the other fields.

    ``replacements`` are applied in order to every token. ``strip_left``: at most so many of ``strip_char`` go
    from the very start of the text. ``drop_in_first``: this character vanishes from the first token.
    """

    byte_level: bool
    byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip_char: str = ""
    strip_left: int = 0
    drop_in_first: str = ""

    def raw_byte(self, token: str) -> int | None:
        """The byte that a ``<0xNN>`` token stands for, or None."""
        if not self.byte_fallback:
            return None
        found = _RAW_BYTE.fullmatch(token)
        return int(found.group(1), 16) if found else None

    def text(self, token: str, first: bool) -> str:
        if first and self.drop_in_first:
            token = token.replace(self.drop_in_first, "")
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token


def _refuse(what: str) -> UnsupportedBase:
    return UnsupportedBase(
        f"tokenizer.json decoder: {what} cannot be streamed exactly; served are ByteLevel, and sequences of Replace, "
        "ByteFallback, Fuse, Metaspace and one left Strip"
    )


def read_rules(decoder: Mapping[str, Any] | None) -> PieceRules:
    """From ``tokenizer.json``'s ``decoder``. Raises UnsupportedBase naming what is not served."""
    if decoder is None:
        raise _refuse("none")
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    if [step.get("type") for step in steps if step.get("type") != "Fuse"] == ["ByteLevel"]:
        return PieceRules(byte_level=True)
    fallback, fused = False, False
    replacements: list[tuple[str, str]] = []
    strip_char, strip_left, drop = "", 0, ""
    for step in steps:
        match step.get("type"):
            case "Replace" if step["pattern"].get("String") and not fallback and not fused:
                replacements.append((step["pattern"]["String"], step["content"]))
            case "ByteFallback" if not fallback and not fused:
                fallback = True
            case "Fuse":
                fused = True
            case "Strip" if fused and not strip_left and step["stop"] == 0:
                strip_char, strip_left = step["content"], step["start"]
            case "Metaspace" if not replacements and not fallback:
                replacements.append((step["replacement"], " "))
                drop = step["replacement"] if step.get("prepend_scheme", "always") != "never" else ""
            case other:
                raise _refuse(f"{other} in this place or form")
    growth = math.prod(max(1.0, len(new) / len(old)) for old, new in replacements)
    if growth > _MAX_GROWTH:
        raise UnsupportedBase(
            f"tokenizer.json decoder: its Replace steps can make a text {growth:.3g} times as long as its token, over "
            f"{_MAX_GROWTH:g}; replace by something shorter"
        )
    return PieceRules(False, fallback, tuple(replacements), strip_char, strip_left, drop)


__all__ = ["PieceRules", "byte_level_bytes", "read_rules"]
