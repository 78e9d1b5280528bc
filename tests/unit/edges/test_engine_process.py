"""An engine whose step loop has ended must not stay as a process that refuses everything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest

from lorry.engine.build import BuiltEngine
from lorry.engine.parts import build_parts
from lorry.engine.process import serve
from lorry.engine.transport_grpc import GrpcEngineClient
from lorry.errors import EngineUnavailable
from lorry.models.weights import read_spec
from tests.support.adapters import FolderHost
from tests.support.engines import ask, engine_config
from tests.support.tiny_base import write_tiny_base


async def test_the_process_ends_when_its_step_loop_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_base(tmp_path / "base")
    config = engine_config(tmp_path / "base")
    host = FolderHost(read_spec(config.base_dir))
    parts = build_parts(config, host)

    def fault(plan: object) -> None:
        raise RuntimeError("a fault of the device")

    monkeypatch.setattr("lorry.engine.build.build", lambda _: BuiltEngine(config, parts, host, host.close))
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stdin, os.fdopen(writer, "wb"):
        monkeypatch.setattr(sys, "stdin", stdin)
        address = f"unix:{tmp_path}/e.sock"
        process = asyncio.create_task(serve(config, address))
        client = GrpcEngineClient(address)
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(EngineUnavailable):
                    await client.info()
                    break
                await asyncio.sleep(0.01)
        monkeypatch.setattr(parts.runner, "submit", fault)
        with pytest.raises(EngineUnavailable):
            await ask(client, [1, 2], None, 4)
        await client.close()
        done, _ = await asyncio.wait([process], timeout=10)
        process.cancel()
        await asyncio.gather(process, return_exceptions=True)
        assert done, "the process lives on: whoever waits for its end to start it anew waits for ever"
