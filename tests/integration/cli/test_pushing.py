"""adapters push: lines for a log, a bar for a person, and a way on after what went wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
import pytest

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import generate_pb2
from lorry.errors import AdapterRefused, AlreadyExists
from tests.integration.cli.answers import PIRATE, THREE, V3
from tests.integration.cli.conftest import Terminal
from tests.support.recorder import Raw, Recorder

UPLOAD = f"{PIRATE}/uploads/{'0' * 32}"
PUSH = ("adapters", "push", "pirate")


@pytest.fixture
def folder(tmp_path: Path, server: Recorder) -> str:
    files = tmp_path / "adapter"
    files.mkdir()
    (files / "adapter_config.json").write_bytes(b"{}")
    (files / "adapter_model.safetensors").write_bytes(b"w" * 998)
    server.script("CreateUpload", pb.Upload(name=UPLOAD, max_chunk_bytes=250))
    server.script("PutChunk", lambda request, _: pb.PutChunkResponse(received_bytes=request.offset + len(request.data)))
    checks = [
        pb.ValidationCheck(id="rank", outcome="pass", message="8", limit="256"),
        pb.ValidationCheck(id="probe", outcome="fail", message="\x1b[2Jno"),
    ]
    server.script("WatchAdapterVersion", [pb.WatchAdapterVersionResponse(check=check) for check in checks])
    server.script("CreateAdapterVersion", THREE)
    server.script("ListModels", generate_pb2.ListModelsResponse(models=[generate_pb2.Model(name="models/smol")]))
    return str(files)


def test_lines_for_a_log(lorry: Terminal, server: Recorder, folder: str) -> None:
    said = lorry(*PUSH, folder)
    assert said.status == 0, said.err
    assert said.out == f"{V3}  ready  rank 8  sha256 {'3' * 64}\n"
    lines = said.err.splitlines()
    assert lines[0] == "uploaded 0 of 1000 bytes (0%)"
    assert "uploaded 502 of 1000 bytes (50%)" in lines
    assert lines.index("uploaded 1000 of 1000 bytes (100%)") == len(lines) - 3
    assert lines[-2:] == ["pass  rank  8 (limit 256)", "fail  probe  ?[2Jno"]
    (request,) = server.of("CreateAdapterVersion")
    assert (request.base, request.upload) == ("models/smol", UPLOAD)
    assert len(request.expected_sha256) == 64


def test_a_bar_for_a_person(lorry: Terminal, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    said = lorry(*PUSH, folder)
    assert said.status == 0, said.err
    assert "1.0/1.0 kB" in said.err
    assert "pass  rank  8 (limit 256)" in said.err


def test_json_is_one_document_and_silence(lorry: Terminal, folder: str) -> None:
    said = lorry(*PUSH, folder, "--json", "--validate-only")
    assert said.json["sha256"] == "3" * 64
    assert said.err == ""


def test_the_base_must_be_said_where_there_is_a_choice(lorry: Terminal, server: Recorder, folder: str) -> None:
    two = [generate_pb2.Model(name="models/a"), generate_pb2.Model(name="models/b"), generate_pb2.Model(name=PIRATE)]
    server.script("ListModels", generate_pb2.ListModelsResponse(models=two))
    said = lorry(*PUSH, folder)
    assert said.status == 1
    assert "models/a, models/b" in said.err
    assert server.of("CreateUpload") == []
    assert lorry(*PUSH, folder, "--base", "models/b").status == 0


def test_create_makes_the_name_or_finds_it(lorry: Terminal, server: Recorder, folder: str) -> None:
    assert lorry(*PUSH, folder, "--create").status == 0
    server.script("CreateAdapter", AlreadyExists("pirate"))
    assert lorry(*PUSH, folder, "--create").status == 0
    assert [(one.parent, one.adapter_id) for one in server.of("CreateAdapter")] == [("tenants/acme", "pirate")] * 2


def test_what_broke_is_gone_on_with(lorry: Terminal, server: Recorder, folder: str) -> None:
    down = Raw(grpc.StatusCode.UNAVAILABLE, "down")
    server.script("PutChunk", pb.PutChunkResponse(received_bytes=2), down)
    server.script(
        "GetUpload",
        pb.Upload(
            name=UPLOAD, max_chunk_bytes=250, files=[pb.UploadFile(path="adapter_config.json", received_bytes=2)]
        ),
    )
    said = lorry(*PUSH, folder)
    assert said.status == 1
    assert said.err.splitlines()[-2] == f"what was sent is kept for a day; go on with --resume {UPLOAD}"
    server.script("PutChunk", lambda request, _: pb.PutChunkResponse(received_bytes=request.offset + len(request.data)))
    before = len(server.of("PutChunk"))
    assert lorry(*PUSH, folder, "--resume", UPLOAD).status == 0
    assert {chunk.file for chunk in server.of("PutChunk")[before:]} == {"adapter_model.safetensors"}
    assert len(server.of("CreateUpload")) == 1


def test_a_refusal_is_not_something_to_go_on_with(lorry: Terminal, server: Recorder, folder: str) -> None:
    server.script("CreateAdapterVersion", AdapterRefused("r: 0; give at least 1"))
    said = lorry(*PUSH, folder)
    assert said.status == 1
    assert "--resume" not in said.err
    assert said.err.splitlines()[-1].startswith("lorry: INVALID_ARGUMENT ADAPTER_REFUSED: r: 0")
