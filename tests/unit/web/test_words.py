"""What pages say in words: figures, browsers, names, and commands that can be typed as they stand there."""

from __future__ import annotations

import re
import shlex
from html import unescape

import pytest

from lorry.cli.app import build_parser
from lorry_admin.web import formats
from lorry_admin.web.actors import user_of
from lorry_admin.web.agents import WORDS_MAX, agent_words
from lorry_admin.web.rendering import FOLDER

_CODE = re.compile(r"(?:<code>|\n)(lorry [^<\n]+)</code>")
CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/150.0.0.0 Safari/537.36"
EDGE = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/150 Safari/537 Edg/150"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit (KHTML, like Gecko) Version/19 Safari/604"


def test_every_command_of_a_page_is_one() -> None:
    found = {file.name: _CODE.findall(file.read_text()) for file in FOLDER.glob("*.html")}
    commands = {(name, text) for name, texts in found.items() for text in texts}
    assert {name for name, _ in commands} >= {"adapters.html", "key.html", "login.html", "replicas.html"}
    for name, text in sorted(commands):
        words = shlex.split(unescape(re.sub(r"\{\{.*?\}\}", "tenants/acme", text)))[1:]
        try:
            build_parser().parse_args(words)
        except SystemExit:
            pytest.fail(f"{name}: {text}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CHROME, "Chrome on Linux"),
        (EDGE, "Edge on Windows"),
        (PHONE, "Safari on iPhone"),
        ("Mozilla/5.0 (Android 15; Mobile; rv:140.0) Gecko/140.0 Firefox/140.0", "Firefox on Android"),
        ("curl/8.5.0", "curl/8.5.0"),
        ("x" * 200, "x" * WORDS_MAX),
        ("", "–"),
    ],
)
def test_browsers(text: str, words: str) -> None:
    assert agent_words(text) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0.9397574599720456", "0.94"),
        ("3.7000957481143994e-07", "3.7e-07"),
        ("20000", "20000"),
        ("-3", "-3"),
        ("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"),
        ("", "–"),
    ],
)
def test_figures_of_a_report(text: str, shown: str) -> None:
    assert formats.figure(text) == shown


def test_money_and_parts() -> None:
    assert [formats.price(one) for one in ("0.1", "12", "0.125", "3.50")] == ["0.10", "12.00", "0.125", "3.50"]
    assert [formats.percent(part, 10_000) for part in (0, 1, 10, 3333)] == ["0%", "<0.1%", "0.1%", "33.3%"]


def test_who_did_it() -> None:
    assert user_of("tenants/acme/users/anna") == "anna@acme"
    assert user_of("elsewhere") == "elsewhere"
