"""Logs: one line for each record, for people (``text``) or for machines (``json``).

A record's fields are passed as ``extra=fields(request_id=..., tenant=...)``. Whatever a user chose, an id, a name, a
path, cannot end a line, begin one that looks like another record, or move a terminal's cursor.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
OWN = ("lorry", "lorry_admin", "lorry_migrations")
"""Loggers that the level is for; all others speak from WARNING on."""
MESSAGE_CHARS = 16 << 10
FIELD_CHARS = 1024
TRACE_CHARS = 32 << 10
_ATTRIBUTE = "lorry_fields"
_NEXT_LINE = "\n    | "
_BARE = re.compile(r"[A-Za-z0-9._:/@+-]+")


def fields(**given: Any) -> dict[str, dict[str, Any]]:
    """For a record's ``extra``. What is None or "" is left out. Never a prompt, an answer or a key."""
    return {_ATTRIBUTE: {name: value for name, value in given.items() if value is not None and value != ""}}


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(record, _ATTRIBUTE, {})
    return found


def level_of(code: str) -> int:
    """Of a call that ended with this gRPC code. What went well, and what the caller did wrong or may not: INFO. No room
    or no time: WARNING. A fault of the platform's: ERROR."""
    if code == "INTERNAL":
        return logging.ERROR
    return logging.WARNING if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED") else logging.INFO


class JsonFormatter(logging.Formatter):
    """An object a line, in ASCII: ``time`` (UTC), ``level``, ``logger``, ``message``, the record's fields, and the
    traceback as ``error`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        seconds, micros = divmod(int(record.created * 1_000_000), 1_000_000)
        found: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clip(record.getMessage(), MESSAGE_CHARS),
        }
        for name, value in fields_of(record).items():
            found.setdefault(name, _plain(value))
        if record.exc_info:
            found["error"] = _clip_front(self.formatException(record.exc_info), TRACE_CHARS)
        return json.dumps(found, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    """``TIME LEVEL LOGGER MESSAGE name=value ...``. What follows in a message of several lines, and a traceback, is set
    behind a bar, so that no text can pass for a record of its own."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [self.formatTime(record), record.levelname, record.name, _clip(record.getMessage(), MESSAGE_CHARS)]
        parts += [f"{name}={_written(value)}" for name, value in fields_of(record).items()]
        text = " ".join(parts)
        if record.exc_info:
            text += "\n" + _clip_front(self.formatException(record.exc_info), TRACE_CHARS)
        return _tame(text)


def set_up(form: LogFormat = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """This process's logs go to ``stream`` (standard error). Replaces what was set up before."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for old in tuple(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in OWN:
        logging.getLogger(name).setLevel(level.upper())


def readable(line: str) -> str:
    """A line of a log in either format, for people: of a JSON line its level and message."""
    if not line.startswith("{"):
        return line
    try:
        found = json.loads(line)
        text = f"{found['level'].upper()} {found['logger']} {found['message']}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    return text + (f"\n{found['error']}" if isinstance(found.get("error"), str) else "")


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return _clip(str(value), FIELD_CHARS)


def _written(value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, str) and _BARE.fullmatch(plain):
        return plain
    return json.dumps(plain)


def _tame(text: str) -> str:
    if text.isprintable():
        return text
    lines = text.split("\n")
    return _NEXT_LINE.join(line if line.isprintable() else "".join(map(_shown, line)) for line in lines)


def _shown(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _clip_front(text: str, most: int) -> str:
    """A traceback's end says what happened."""
    return text if len(text) <= most else f"({len(text)} characters) ...{text[-most:]}"


__all__ = [
    "FORMATS",
    "LEVELS",
    "JsonFormatter",
    "LogFormat",
    "TextFormatter",
    "fields",
    "fields_of",
    "level_of",
    "readable",
    "set_up",
]
