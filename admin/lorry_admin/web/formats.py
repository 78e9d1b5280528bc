"""Numbers, sizes and times as people read them. Times are UTC, as the ledger's are."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import adapter_admin_pb2 as pb

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float) -> str:
    return f"{value:,.0f}"


def short_number(value: float) -> str:
    """For axes and tiles: 1.2k, 34M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def size(value: float) -> str:
    for unit in _SIZES[:-1]:
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_SIZES[-1]}"


def seconds(value: float | None) -> str:
    """With three digits that matter; "–" for none."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


def percent(part: float, whole: float) -> str:
    """With three digits that matter; what is less than a tenth, but something, as that."""
    if not whole:
        return "–"
    found = 100 * part / whole
    return "<0.1%" if 0 < found < 0.1 else f"{found:.3g}%"


def figure(text: str) -> str:
    """A number that is written whole, as it was computed: with three digits where it has a fraction, "–" for none."""
    if not text:
        return "–"
    try:
        return text if text.lstrip("-").isdigit() else f"{float(text):.3g}"
    except ValueError:
        return text


def price(text: str) -> str:
    """With two decimals at least, as money is written."""
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals.ljust(2, '0')}"


def moment(value: Timestamp | datetime | float | None) -> datetime | None:
    """None where it is absent."""
    if value is None:
        return None
    if isinstance(value, Timestamp):
        return value.ToDatetime(tzinfo=UTC) if value.seconds or value.nanos else None
    return datetime.fromtimestamp(value, UTC) if isinstance(value, int | float) else value


def stamp(value: Timestamp | datetime | float | None) -> str:
    found = moment(value)
    return "–" if found is None else f"{found:%Y-%m-%d %H:%M:%S}"


def iso(value: Timestamp | datetime | float | None) -> str:
    found = moment(value)
    return "" if found is None else f"{found:%Y-%m-%dT%H:%M:%SZ}"


def ago(value: Timestamp | datetime | float | None, now: float | None = None) -> str:
    """As `5 min ago`, or `in 3 h`."""
    found = moment(value)
    if found is None:
        return "never"
    passed = (time.time() if now is None else now) - found.timestamp()
    amount = _span(abs(passed))
    if amount == "0 s":
        return "now"
    return f"{amount} ago" if passed >= 0 else f"in {amount}"


def _span(passed: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= 2 * length or (unit != "d" and passed >= length):
            return f"{passed // length:.0f} {unit}"
    return f"{passed:.0f} s"


def alias_words(alias: pb.Alias) -> str:
    """As `@prod → 2 / 3 at 10.0%`."""
    canary = f" / {alias.canary_version} at {alias.canary_permille / 10}%" if alias.canary_version else ""
    return f"@{alias.name.rsplit('@', 1)[-1]} → {alias.version}{canary}"


def pretty_json(text: str) -> str:
    """Indented; as it is where it is none."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return text
    return json.dumps(found, indent=2, ensure_ascii=False, sort_keys=True)


__all__ = [
    "ago", "alias_words", "figure", "iso", "moment", "number", "percent", "pretty_json", "price", "seconds",
    "short_number", "size", "stamp",
]  # fmt: skip
