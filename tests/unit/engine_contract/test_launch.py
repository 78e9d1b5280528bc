from __future__ import annotations

from pathlib import Path

import pytest

from lorry.config import EngineConfig, StoreConfig, TierConfig
from lorry.engine.launch import EngineProcess
from lorry.engine.transport_grpc import GrpcEngineClient
from lorry.registry.secretfiles import PEPPER_VARIABLE, SALT_VARIABLE


def test_the_registrys_secrets_do_not_reach_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PEPPER_VARIABLE, SALT_VARIABLE, "LORRY_ELSE"):
        monkeypatch.setenv(name, "11" * 32)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    process = EngineProcess(
        EngineConfig(tmp_path, StoreConfig("s3://bucket"), TierConfig(tmp_path)), GrpcEngineClient("unix:e"), tmp_path
    )
    environment = process._environment()
    assert not {PEPPER_VARIABLE, SALT_VARIABLE} & environment.keys()
    assert environment["LORRY_ELSE"] == "11" * 32
    assert environment["OMP_NUM_THREADS"] == "7"
    assert "GOMP_SPINCOUNT" in environment
