"""generate, chat and export: what comes on which stream, and how each ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenants
from lorry.errors import (
    InternalError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    QuotaExceeded,
    StaleEtag,
    TokenBudgetSpent,
)
from tests.integration.cli.answers import PIRATE, STREAM
from tests.integration.cli.conftest import Terminal
from tests.support.recorder import Recorder

ASK = ("generate", "--model", "pirate@prod")
CHAT = ("chat", "--model", "pirate@prod")


def sent(server: Recorder) -> list[list[tuple[str, str]]]:
    """The conversations that were sent."""
    return [[(one.role, one.content) for one in request.chat.messages] for request in server.of("GenerateStream")]


def test_text_on_one_stream_and_what_is_known_on_the_other(lorry: Terminal, server: Recorder) -> None:
    server.script("GenerateStream", STREAM)
    said = lorry(*ASK, "hi", "--system", "be brief")
    assert said.out == "ahoy\n"
    assert said.err == f"[{PIRATE} version 3 sha256 {'3' * 64} @prod canary; 2 tokens, stop]\n"
    assert sent(server) == [[("system", "be brief"), ("user", "hi")]]


def test_the_prompt_may_come_through_a_pipe_and_be_raw(lorry: Terminal, server: Recorder) -> None:
    server.script("GenerateStream", STREAM)
    assert lorry(*ASK, "-", "--raw", "--timeout", "20", typed="two\nlines").status == 0
    assert server.calls[-1].request.prompt == "two\nlines"
    assert (server.calls[-1].left_s or 1e9) < 30


def test_json_is_the_api_s_own(lorry: Terminal, server: Recorder) -> None:
    server.script("GenerateStream", STREAM)
    found = lorry(*ASK, "hi", "--json").json
    assert set(found) >= {"requestId", "model", "choices", "usage"}
    assert found["model"]["canary"] is True
    assert set(found) <= {one.json_name for one in pb.GenerateResponse.DESCRIPTOR.fields}
    assert found["choices"][0]["outputTokens"] == 2


LINES: list[tuple[Any, str]] = [
    (ModelNotFound("model: unknown"), "lorry: NOT_FOUND MODEL_NOT_FOUND: model: unknown; lorry models lists"),
    (QuotaExceeded("60 a minute"), "lorry: RESOURCE_EXHAUSTED QUOTA_EXCEEDED: 60 a minute\n"),
    (QuotaExceeded("a minute", retry_after_s=86400), "a minute; try again in 86400 s"),
    (TokenBudgetSpent("spent"), "lorry: RESOURCE_EXHAUSTED TOKEN_BUDGET_SPENT: spent; lorry quota list"),
    (InvalidRequest.field("n", "17;\nsend 1 to 16"), "lorry: INVALID_ARGUMENT INVALID_REQUEST: n: 17; send 1 to 16\n"),
    (InternalError("id 7"), "lorry: INTERNAL INTERNAL: id 7\n"),
]


@pytest.mark.parametrize(("error", "line"), LINES, ids=[type(error).__name__ for error, _ in LINES])
def test_an_error_is_one_line_with_a_remedy_and_status_1(
    lorry: Terminal, server: Recorder, error: Any, line: str
) -> None:
    server.script("GenerateStream", error)
    said = lorry(*ASK, "hi")
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("lorry: ")
    assert line in said.err
    assert said.err.count("\n") == 1


def test_an_error_in_the_middle_is_no_end(lorry: Terminal, server: Recorder) -> None:
    server.script("GenerateStream", [*STREAM[:2], Overloaded("gone", retry_after_s=1.0)], STREAM)
    said = lorry(*ASK, "hi")
    assert (said.status, said.out) == (1, "ahoy\n")
    assert "gone" in said.err
    server.script("GenerateStream", STREAM[:2])
    said = lorry(*ASK, "hi", "--json")
    assert (said.status, said.out) == (1, "")
    assert json.loads(said.err)["error"]["reason"] == "EMPTY_STREAM"


def test_errors_in_json_have_stable_names(lorry: Terminal, server: Recorder) -> None:
    server.script("PromoteCanary", StaleEtag("etag: e6 is not current", metadata={"etag": "e7"}))
    said = lorry("alias", "promote", "pirate@prod", "--etag", "e6", "--json")
    assert said.status == 1
    assert json.loads(said.err)["error"] == {
        "code": "ABORTED",
        "reason": "STALE_ETAG",
        "message": "etag: e6 is not current",
        "remedy": "somebody changed it meanwhile: look at it again, and send its new etag",
        "retryAfterSeconds": None,
        "metadata": {"etag": "e7"},
        "fieldViolations": [],
    }


@pytest.mark.parametrize(
    "line", ["", "nonsense", "alias set pirate@prod zero", "adapters purge", "keys rotate k --overlap x"]
)
def test_wrong_usage_is_status_2(lorry: Terminal, server: Recorder, line: str) -> None:
    said = lorry(*line.split())
    assert (said.status, said.out) == (2, "")
    assert "usage: lorry" in said.err
    assert server.calls == []


def test_an_interrupt_is_status_130(lorry: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("lorry.cli.commands.generating.session", interrupted)
    assert lorry("models").status == 130


def test_a_purge_wants_a_yes(lorry: Terminal, server: Recorder) -> None:
    assert lorry("adapters", "purge", "pirate").status == 1
    said = lorry("adapters", "purge", "pirate", person=True, typed="n\n")
    assert said.status == 1
    assert "nothing was done" in said.err
    assert server.calls == []
    assert lorry("adapters", "purge", "pirate", person=True, typed="y\n").status == 0
    assert server.of("PurgeAdapter")[0].name == PIRATE


def test_a_conversation_through_a_pipe_remembers(lorry: Terminal, server: Recorder) -> None:
    server.script("GenerateStream", STREAM)
    typed = "one\n\ntwo\n/reset\nthree\n/model models/smol\n//four\n/quit\nfive\n"
    said = lorry(*CHAT, "--system", "S", "--label", "team=a", typed=typed)
    assert said.status == 0, said.err
    assert said.out == "ahoy\n" * 4
    first = [("system", "S"), ("user", "one")]
    assert sent(server) == [
        first,
        [*first, ("assistant", "ahoy"), ("user", "two")],
        [("system", "S"), ("user", "three")],
        [("system", "S"), ("user", "three"), ("assistant", "ahoy"), ("user", "/four")],
    ]
    requests = server.of("GenerateStream")
    assert [request.model for request in requests] == [f"{PIRATE}@prod"] * 3 + ["models/smol"]
    assert {dict(request.labels)["team"] for request in requests} == {"a"}


def test_a_conversation_in_json_lines(lorry: Terminal, server: Recorder) -> None:
    server.script("GenerateStream", STREAM)
    said = lorry(*CHAT, "--json", typed="one\ntwo\n")
    assert [json.loads(line)["choices"][0]["text"] for line in said.out.splitlines()] == ["ahoy", "ahoy"]


def test_through_a_pipe_the_first_error_ends_it(lorry: Terminal, server: Recorder) -> None:
    server.script("GenerateStream", InternalError("broken"), STREAM)
    said = lorry(*CHAT, typed="one\ntwo\n")
    assert (said.status, said.out) == (1, "")
    assert len(sent(server)) == 1


def test_a_person_goes_on_after_an_error_and_the_question_is_forgotten(
    lorry: Terminal, server: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed: Iterator[Any] = iter(["one", "/nonsense", "/model a b", "two", KeyboardInterrupt(), "/model"])

    def read(prompt: str) -> str:
        line: Any = next(typed, None)
        if line is None:
            raise EOFError
        if isinstance(line, BaseException):
            raise line
        return str(line)

    monkeypatch.setattr("lorry.cli.chat._prompted.__defaults__", (read,))
    server.script("GenerateStream", InternalError("broken"), STREAM)
    said = lorry(*CHAT, person=True)
    assert said.status == 0
    assert "INTERNAL" in said.err
    assert "/reset" in said.err
    assert f"{PIRATE}@prod\n" in said.err
    assert sent(server) == [[("user", "one")], [("user", "two")]]


ROWS = [tenants.ExportUsageResponse(data=b"a,b\n1,2\n"), tenants.ExportUsageResponse(data=b"3,4\n")]


def test_an_export_goes_out_as_it_came(lorry: Terminal, server: Recorder) -> None:
    server.script("ExportUsage", ROWS)
    line = ("usage", "export", "--since", "2026-11-01", "--until", "2026-12-01")
    assert lorry(*line).out == "a,b\n1,2\n3,4\n"
    assert server.of("ExportUsage")[-1].format == tenants.USAGE_FORMAT_CSV
    lorry(*line, "--json")
    assert server.of("ExportUsage")[-1].format == tenants.USAGE_FORMAT_JSONL


def test_half_an_export_is_no_file(lorry: Terminal, server: Recorder, tmp_path: Path) -> None:
    file = tmp_path / "usage.csv"
    server.script("ExportUsage", [ROWS[0], InternalError("lost")], ROWS)
    assert lorry("usage", "export", "--output", str(file)).status == 1
    assert not file.exists()
    assert lorry("usage", "export", "--output", str(file)).status == 0
    assert file.read_bytes() == b"a,b\n1,2\n3,4\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["usage.csv"]


def test_a_reader_that_has_seen_enough_is_no_error(lorry: Terminal, server: Recorder, tmp_path: Path) -> None:
    server.script("ExportUsage", [tenants.ExportUsageResponse(data=b"x" * 65536)] * 64)
    environment = {**os.environ, "LORRY_ADDRESS": server.address}
    program = "import sys; from lorry.cli import main; sys.exit(main(['usage', 'export']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait() == 1
