"""The ledger's rows as lines of a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from lorry.registry.db.tables import UsageEvent

CHUNK_BYTES = 256 << 10
COLUMNS = (
    "ledger_id",
    "request_id",
    "key",
    "principal",
    "adapter",
    "version",
    "alias",
    "canary",
    "adapter_sha256",
    "base_sha256",
    "replica",
    "outcome",
    "prompt_tokens",
    "cached_prompt_tokens",
    "output_tokens",
    "started_at",
    "ended_at",
    "queue_seconds",
    "ttft_seconds",
    "decode_seconds",
    "labels",
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


class Format(StrEnum):
    """CSV: RFC 4180 with a header, UTF-8. JSONL: an object a line, with the same names."""

    CSV = "csv"
    JSONL = "jsonl"


def values_of(row: UsageEvent) -> dict[str, Any]:
    """By column. What a row of an older release does not know is None."""
    return {
        "ledger_id": row.ledger_id,
        "request_id": row.request_id,
        "key": row.key_id,
        "principal": row.principal,
        "adapter": row.adapter,
        "version": row.version,
        "alias": row.alias,
        "canary": row.canary,
        "adapter_sha256": row.adapter_sha256,
        "base_sha256": row.base_sha256,
        "replica": row.replica,
        "outcome": row.outcome,
        "prompt_tokens": row.prompt_tokens,
        "cached_prompt_tokens": row.cached_prompt_tokens,
        "output_tokens": row.output_tokens,
        "started_at": _time(row.started_at),
        "ended_at": _time(row.ended_at),
        "queue_seconds": row.queue_s,
        "ttft_seconds": row.ttft_s,
        "decode_seconds": row.decode_s,
        "labels": None if row.labels is None else dict(sorted(row.labels.items())),
    }


def header(form: Format) -> bytes:
    """What a file begins with."""
    return _csv_line(COLUMNS) if form is Format.CSV else b""


def line(form: Format, row: UsageEvent) -> bytes:
    values = values_of(row)
    if form is Format.CSV:
        return _csv_line([cell(values[name]) for name in COLUMNS])
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def cell(value: Any) -> str:
    """A value as a cell that no spreadsheet takes for a formula: text that begins with ``=``, ``+``, ``-``, ``@``, a
    tab, a carriage return or ``'`` gets a ``'`` in front, which is all that has to be taken off to read it back."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        value = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


def chunks(lines: Iterable[bytes], limit: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Whole lines together, each chunk within ``limit``; a longer line is a chunk of its own."""
    held: list[bytes] = []
    size = 0
    for one in lines:
        if held and size + len(one) > limit:
            yield b"".join(held)
            held, size = [], 0
        held.append(one)
        size += len(one)
    if held:
        yield b"".join(held)


def _csv_line(cells: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().encode()


def _time(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


__all__ = ["CHUNK_BYTES", "COLUMNS", "Format", "cell", "chunks", "header", "line", "values_of"]
