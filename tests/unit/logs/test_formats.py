"""Lines of the log: what they hold, and that no value ends one or begins another."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from lorry import logs

EVIL = "x\n2026-01-01 00:00:00,000 ERROR lorry all is lost\r\x1b[2J\u2028\x85\x00\ud800"
SHOWN = "all is lost"


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    kept, level = list(root.handlers), root.level
    yield
    root.handlers[:] = kept
    root.setLevel(level)
    for name in logs.OWN:
        logging.getLogger(name).setLevel(logging.NOTSET)


def said(form: logs.LogFormat, message: str, *arguments: object, error: bool = False, **given: object) -> str:
    stream = io.StringIO()
    logs.set_up(form, "info", stream)
    log = logging.getLogger("lorry.gateway.requests")
    try:
        if error:
            raise ValueError(EVIL)
    except ValueError:
        log.exception(message, *arguments, extra=logs.fields(**given))
    else:
        log.info(message, *arguments, extra=logs.fields(**given))
    return stream.getvalue()


def test_json_is_an_object_a_line(restored: None) -> None:
    text = said("json", "generation %s", "OK", request_id="r-1", tenant="acme", seconds=0.5, version=3, stream=True)
    assert text.isascii()
    assert text.endswith("\n")
    found = json.loads(text)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info",
        "logger": "lorry.gateway.requests",
        "message": "generation OK",
        "request_id": "r-1",
        "tenant": "acme",
        "seconds": 0.5,
        "version": 3,
        "stream": True,
    }


def test_text_is_a_line(restored: None) -> None:
    text = said("text", "generation %s", "OK", request_id="r-1", tenant="acme", note="two words", empty="", none=None)
    _, _, rest = text.partition(" INFO ")
    assert rest == 'lorry.gateway.requests generation OK request_id=r-1 tenant=acme note="two words"\n'


@pytest.mark.parametrize("error", [False, True])
def test_no_value_breaks_a_json_line(restored: None, error: bool) -> None:
    text = said("json", "failed: %s", EVIL, error=error, request_id=EVIL, level=EVIL, many=[EVIL], odd=float("nan"))
    assert text.count("\n") == 1
    assert text.isascii()
    assert text[:-1].isprintable()
    found = json.loads(text)
    assert (found["message"], found["request_id"], found["many"]) == (f"failed: {EVIL}", EVIL, [EVIL])
    assert found["level"] == ("error" if error else "info"), "a field takes no name of the record's own"
    assert ("error" in found) is error


@pytest.mark.parametrize("error", [False, True])
def test_no_value_looks_like_a_record_in_text(restored: None, error: bool) -> None:
    text = said("text", "failed: %s", EVIL, error=error, request_id=EVIL)
    first, *more = text[:-1].split("\n")
    assert first.startswith("20")
    assert "lorry.gateway.requests failed: x" in first
    assert all(line.startswith("    | ") for line in more)
    assert all(line.isprintable() for line in (first, *more))
    assert any(SHOWN in line for line in more), "nothing is left out either"


def test_lengths_are_bounded(restored: None) -> None:
    text = said("json", "%s", "x" * 1_000_000, request_id="y" * 1_000_000)
    assert len(text) < 20_000
    assert "1000000 characters" in text


def test_the_level_is_for_our_own_loggers(restored: None) -> None:
    stream = io.StringIO()
    logs.set_up("json", "debug", stream)
    for name in ("lorry.gateway", "lorry_admin.web", "other"):
        logging.getLogger(name).debug("fine print")
        logging.getLogger(name).warning("watch out")
    found = [(line["logger"], line["level"]) for line in map(json.loads, stream.getvalue().splitlines())]
    assert found == [
        ("lorry.gateway", "debug"),
        ("lorry.gateway", "warning"),
        ("lorry_admin.web", "debug"),
        ("lorry_admin.web", "warning"),
        ("other", "warning"),
    ]


def test_a_json_line_is_read_back_for_people(restored: None) -> None:
    line = said("json", "the engine cannot start: %s", "no room")[:-1]
    assert logs.readable(line) == "INFO lorry.gateway.requests the engine cannot start: no room"
    assert "ValueError" in logs.readable(said("json", "failed", error=True)[:-1])
    for other in ("plain text", "{", "{}", '{"level": 3, "logger": 1, "message": 2}', "[1]"):
        assert logs.readable(other) == other


@pytest.mark.parametrize(
    ("code", "level"),
    [
        ("OK", logging.INFO),
        ("CANCELLED", logging.INFO),
        ("INVALID_ARGUMENT", logging.INFO),
        ("RESOURCE_EXHAUSTED", logging.INFO),
        ("UNAVAILABLE", logging.WARNING),
        ("DEADLINE_EXCEEDED", logging.WARNING),
        ("INTERNAL", logging.ERROR),
    ],
)
def test_levels(code: str, level: int) -> None:
    assert logs.level_of(code) == level
