"""Numbers of the command line as people write them: each refuses, in words, what cannot be meant. For argparse."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMG]I?)?B?", re.IGNORECASE)


def size(text: str) -> int:
    """Bytes, at least one: ``2GiB``, ``512MiB``, ``1.5G``, ``2147483648``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 2GiB, 512MiB or bytes")
    made = int(float(found[1]) * _UNITS[(found[2] or "").upper()])
    if made < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no byte at all; write 2GiB, 512MiB or bytes")
    return made


def budget(text: str) -> int | None:
    """A size; ``auto`` is None: whatever suits the device."""
    return None if text.strip().lower() == "auto" else size(text)


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def number(text: str) -> int:
    """A whole number, 0 too."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def fraction(text: str) -> float:
    """At least 0 and under 1."""
    try:
        made = float(text)
    except ValueError:
        made = -1.0
    if not 0.0 <= made < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction; give at least 0 and less than 1, as 0.25")
    return made


def part(text: str) -> float:
    """A fraction above 0."""
    made = fraction(text)
    if not made:
        raise argparse.ArgumentTypeError(f"{text!r} is nothing at all; give more than 0 and less than 1, as 0.25")
    return made


def share(text: str) -> float:
    """0 to 1, both too."""
    try:
        made = float(text)
    except ValueError:
        made = -1.0
    if not 0.0 <= made <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a part of all; give 0 to 1, as 0.1")
    return made


def port(text: str) -> int:
    """A TCP port; 0 is any."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give 0 (any) to 65535")
    return int(text)


def seconds(text: str) -> float:
    """More than none, at most a day."""
    try:
        made = float(text)
    except ValueError:
        made = 0.0
    if not 0.0 < made <= 86400.0:
        raise argparse.ArgumentTypeError(f"{text!r} are no seconds; give more than 0 and at most 86400")
    return made


__all__ = ["budget", "count", "fraction", "number", "part", "port", "seconds", "share", "size"]
