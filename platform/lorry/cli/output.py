"""What commands print: text for people, or with ``--json`` one JSON document with the names of proto JSON."""

from __future__ import annotations

import argparse
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

M = TypeVar("M", bound=Message)


def as_json(message: Message) -> dict[str, Any]:
    """Every field but those that are absent, so that a reader may rely on its name."""
    found: dict[str, Any] = MessageToDict(message, always_print_fields_with_no_presence=True)
    return found


def print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_json_line(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, ensure_ascii=False), flush=True)


def show(options: argparse.Namespace, message: M, text: Callable[[M], str]) -> None:
    """One resource."""
    if options.json:
        print_json(as_json(message))
    else:
        print(text(message))


def show_all(
    options: argparse.Namespace,
    key: str,
    messages: Iterable[M],
    head: Sequence[str],
    row: Callable[[M], Sequence[object]],
) -> None:
    """A list: ``{key: [...]}``, or a table."""
    if options.json:
        print_json({key: [as_json(message) for message in messages]})
    else:
        print_table(head, [row(message) for message in messages])


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be; nothing is cut off, whether somebody looks or a pipe does."""
    if not rows:
        print("none")
        return
    lines = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def printable(value: object) -> str:
    """What a server sent cannot move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in str(value))


def written(text: str) -> str:
    """What a model wrote, for standard output: control characters do not reach a terminal, a pipe gets all of it."""
    if not sys.stdout.isatty():
        return text
    return "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")


def say(text: str) -> None:
    """Beside the answer: to standard error."""
    print(text, file=sys.stderr, flush=True)


def when(message: Message, field: str) -> str:
    """A time as RFC 3339, "" where it is absent."""
    if not message.HasField(field):
        return ""
    stamp: Timestamp = getattr(message, field)
    return str(stamp.ToJsonString()).partition(".")[0].removesuffix("Z") + "Z"


def word(enum: Any, value: int, prefix: str) -> str:
    """``ready`` of ``ADAPTER_VERSION_STATE_READY``."""
    return str(enum.Name(value)).removeprefix(prefix).lower()


__all__ = [
    "as_json",
    "print_json",
    "print_json_line",
    "print_table",
    "printable",
    "say",
    "show",
    "show_all",
    "when",
    "word",
    "written",
]
