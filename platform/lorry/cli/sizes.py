"""Sizes as people write them."""

from __future__ import annotations

import argparse
import re

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMG]I?)?B?", re.IGNORECASE)


def size(text: str) -> int:
    """Bytes: ``2GiB``, ``512MiB``, ``1.5G``, ``2147483648``. For argparse."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 2GiB, 512MiB or bytes")
    return int(float(found[1]) * _UNITS[(found[2] or "").upper()])


__all__ = ["size"]
