"""A request's body as JSON, strictly: what two readers could understand differently is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from lorry.errors import InvalidRequest

DEPTH_MAX = 16
"""Objects and lists within each other; no request needs more than five."""
_JSON = "application/json"


def check_headers(headers: Sequence[tuple[bytes, bytes]], most_bytes: int) -> None:
    """Raises InvalidRequest unless the head announces JSON of at most ``most_bytes``, not compressed."""
    found = {name: value.decode("latin-1") for name, value in headers}
    kind, _, parameters = found.get(b"content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != _JSON or charset not in ("", "charset=utf-8"):
        raise InvalidRequest.field("content-type", f"{found.get(b'content-type', '')[:80]!r}; send {_JSON} in UTF-8")
    if found.get(b"content-encoding", "identity").lower() != "identity":
        raise InvalidRequest.field("content-encoding", "not served; send the body as it is")
    length = found.get(b"content-length", "0")
    if length.isdigit() and int(length[:20]) > most_bytes:
        raise too_large(most_bytes)


def too_large(most_bytes: int) -> InvalidRequest:
    return InvalidRequest.field("body", f"above {most_bytes} bytes; shorten it")


def read_object(raw: bytes) -> dict[str, Any]:
    """Raises InvalidRequest (``body``) where it is not one JSON object in UTF-8, or has a key twice, a number that is
    none, or more depth than any request needs; and, by its path, for text that is not Unicode."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _bad(f"not UTF-8 at byte {error.start}") from None
    try:
        found = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise _bad(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:  # an integer of thousands of digits
        raise _bad("a number has too many digits") from None
    if not isinstance(found, dict):
        raise _bad("not an object; send {...}")
    _check(found)
    return found


def _check(found: dict[str, Any]) -> None:
    """Walks without recursion, so that no depth can break it."""
    steps: list[tuple[str, Any, int]] = [("", found, 1)]
    while steps:
        path, value, depth = steps.pop()
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InvalidRequest.field(path, "has half of a surrogate pair; send whole characters") from None
        elif isinstance(value, dict | list):
            if depth > DEPTH_MAX:
                raise _too_deep()
            if isinstance(value, dict):
                for key, one in value.items():
                    steps.append(("a key", key, depth))
                    steps.append((f"{path}.{key}" if path else key, one, depth + 1))
            else:
                steps += [
                    (f"{path}[{at}]", one, depth + 1)
                    for at, one in enumerate(value)
                    if isinstance(one, str | dict | list)
                ]


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest.field(key[:80].encode(errors="replace").decode(), "is there twice; send it once")
            seen.add(key)
    return found


def _constant(name: str) -> NoReturn:
    raise _bad(f"{name} is no JSON number")


def _too_deep() -> InvalidRequest:
    return _bad(f"more than {DEPTH_MAX} levels deep; send a flatter one")


def _bad(what: str) -> InvalidRequest:
    return InvalidRequest.field("body", what)


__all__ = ["DEPTH_MAX", "check_headers", "read_object", "too_large"]
