"""``lorry`` against a scripted server, in this process, with a home of its own."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lorry.cli.app import main
from tests.support.recorder import Recorder

KEY = "lorry_0123456789abcdef_" + "ab" * 32


@dataclass(frozen=True)
class Said:
    """What a command ended with, and said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Terminal:
    """No terminal: standard input is a pipe, unless told otherwise."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    folder: Path

    def __call__(self, *argv: str, typed: str = "", person: bool = False) -> Said:
        stdin = io.StringIO(typed)
        self.monkeypatch.setattr(stdin, "isatty", lambda: person)
        self.monkeypatch.setattr(sys, "stdin", stdin)
        self.capsys.readouterr()
        try:
            status = main(argv)
        except SystemExit as left:
            status = int(left.code or 0)
        shown = self.capsys.readouterr()
        return Said(status, shown.out, shown.err)

    def set(self, **environment: str | None) -> None:
        for name, value in environment.items():
            if value is None:
                self.monkeypatch.delenv(name, raising=False)
            else:
                self.monkeypatch.setenv(name, value)


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder() as made:
        yield made


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Terminal:
    """Nobody is logged in, nothing is exported."""
    made = Terminal(monkeypatch, capsys, tmp_path)
    made.set(LORRY_PROFILE=str(tmp_path / "profile.toml"), LORRY_ADDRESS=None, LORRY_API_KEY=None, LORRY_TENANT=None)
    return made


@pytest.fixture
def lorry(nowhere: Terminal, server: Recorder) -> Terminal:
    """As an owner of acme, with the scripted server."""
    nowhere.set(LORRY_ADDRESS=server.address, LORRY_API_KEY=KEY, LORRY_TENANT="acme")
    return nowhere


__all__ = ["KEY", "Said", "Terminal"]
