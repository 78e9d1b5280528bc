"""What an engine's process is given, and what is read of its log, in either format."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lorry.config import EngineConfig, StoreConfig, TierConfig
from lorry.engine.launch import EngineProcess
from lorry.engine.process import CONFIG_STATUS, REFUSAL
from lorry.engine.transport_grpc import GrpcEngineClient
from lorry.logs import JsonFormatter


def child(tmp_path: Path) -> EngineProcess:
    config = EngineConfig(tmp_path, StoreConfig(f"file://{tmp_path}"), TierConfig(tmp_path))
    return EngineProcess(config, GrpcEngineClient(f"unix:{tmp_path}/engine.sock"), tmp_path / "engine.log")


def json_line(message: str) -> str:
    record = logging.LogRecord("lorry.engine.process", logging.ERROR, "", 0, message, None, None)
    return JsonFormatter().format(record)


async def test_a_json_log_says_why_an_engine_did_not_start(tmp_path: Path) -> None:
    made = child(tmp_path)
    (tmp_path / "engine.log").write_text(
        f"{json_line('loading')}\n{json_line(REFUSAL + 'INVALID: memory: too small')}\n"
    )
    assert made.tail().splitlines() == [
        "ERROR lorry.engine.process loading",
        f"ERROR lorry.engine.process {REFUSAL}INVALID: memory: too small",
    ]
    why = made._why_not(CONFIG_STATUS)
    assert why == f"{REFUSAL}INVALID: memory: too small\nits log: {tmp_path}/engine.log"


async def test_what_a_child_does_not_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("LORRY_KEY_PEPPER", "LORRY_KV_SALT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
    for name in (*kept, "OTHER"):
        monkeypatch.setenv(name, "here")
    found = child(tmp_path)._environment()
    assert found["OTHER"] == "here"
    assert not set(kept) & set(found)
