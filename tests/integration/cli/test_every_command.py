"""Every command once in words and once in JSON: what it asks the server, and what it makes of the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from lorry.cli.app import build_parser
from tests.integration.cli.commands import CASES, Case
from tests.integration.cli.conftest import KEY as API_KEY
from tests.integration.cli.conftest import Terminal
from tests.support.recorder import Recorder

ELSEWHERE = {
    "login",
    "logout",
    "whoami",
    "doctor",
    "chat",
    "usage export",  # test_account.py, test_doctor.py, test_talking.py
    "bases create",  # test_bases.py
    "adapters validate",
    "adapters formats",  # tests/unit/cli/test_adapters.py
    "demo",
    "serve",
    "migrate",
    "model",  # tests/e2e
}


def commands() -> Iterator[str]:
    """Every command that the parser knows."""
    for name, parser in subparsers(build_parser()):
        actions = list(subparsers(parser))
        yield from (f"{name} {action}" for action, _ in actions) if actions else (name,)


def subparsers(parser: Any) -> Iterator[tuple[str, Any]]:
    for action in parser._actions:
        if hasattr(action, "choices") and isinstance(action.choices, dict):
            yield from action.choices.items()


def test_every_command_is_here_or_elsewhere() -> None:
    tested = {
        " ".join(one.line.split()[: 2 if " ".join(one.line.split()[:2]) in set(commands()) else 1]) for one in CASES
    }
    assert tested | ELSEWHERE == set(commands())
    assert not tested & ELSEWHERE


@pytest.mark.parametrize("one", CASES, ids=[one.line[:40] for one in CASES])
def test_a_command_in_words_and_in_json(lorry: Terminal, server: Recorder, one: Case) -> None:
    for method, answer in one.scripts.items():
        if answer is not None:
            server.script(method, answer if not isinstance(answer, list) else [*answer])
    words = lorry(*one.line.split())
    assert words.status == one.status, words.err
    for text in one.says:
        assert text in words.out
    told = lorry(*one.line.split(), "--json")
    assert told.status == one.status, told.err
    found = told.json
    path, value = one.holds
    for step in path:
        found = found[step]
    assert (len(found) if isinstance(value, int) and isinstance(found, list) else found) == value
    for request in server.of(one.method)[-1:]:
        asked = MessageToDict(request)
        asked.pop("requestId", None)
        assert asked == one.asks
    assert {call.metadata["authorization"] for call in server.calls} == {f"Bearer {API_KEY}"}
