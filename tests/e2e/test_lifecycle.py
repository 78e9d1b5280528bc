"""Starting and stopping: nothing is left behind, nothing is forgotten, and one home has one platform."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import generate_pb2 as pb
from lorry.api.v1 import generate_pb2_grpc
from lorry.cli.platform import Platform
from lorry.client import AsyncClient
from lorry.errors import FailedPrecondition, LorryError, Unauthenticated
from tests.e2e.calls import read_stream
from tests.e2e.world import BASE, CONTEXT, THE_BASE, ask, bearer, fill, running, settings
from tests.support.processes import descendants, names, still_alive

HOUR = timedelta(hours=1)


def socket_folder(platform: Platform) -> Path:
    return Path(platform.engine.address.removeprefix("unix:")).parent


async def test_it_stops_without_a_trace_and_starts_again_with_all_it_knew(tracer_base: Path, tmp_path: Path) -> None:
    options = settings(tmp_path / "home", tracer_base)
    before = descendants()
    async with running(tmp_path, options) as world:
        await fill(world)
        owner, guest, gone = [await world.tenant(stem) for stem in ("owner", "guest", "gone")]
        older = await world.tracer(owner, 1)
        newer = await world.push(older.adapter, 2)
        withdrawn = await world.tracer(owner, 3)
        cold = await world.tracer(owner, 4)
        alias = await world.set_alias(older, "live")
        await world.admin.grant(guest.name, older.adapter)
        await world.pin(guest, older)
        await world.quarantine(withdrawn)
        await world.admin.revoke_key(gone.key_name)
        await world.settle()
        for tracer in (older, newer):
            await world.right(owner.key, tracer.name, tracer)
        with pytest.raises(FailedPrecondition, match="home"):
            async with Platform(options):
                pytest.fail("two platforms in one home")
        await world.serves_on()
        started, folder, address = descendants() - before, socket_folder(world.platform), world.platform.address
        assert folder.is_dir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        commands = " ".join(names(started))
        assert "lorry.engine.process" in commands
        assert "weed" in commands
        admin_key = world.admin_key
        channel = grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        stub: Any = generate_pb2_grpc.GenerateServiceStub(channel)
        long, short = [
            stub.GenerateStream(ask(older.name, length), metadata=bearer(owner.key)) for length in (CONTEXT - 8, 100)
        ]
        for call in (long, short):
            assert (await anext(aiter(call))).WhichOneof("event") == "start"
        refused = await world.stream(owner.key, ask(f"{older.adapter}-none"))
        assert refused.code is grpc.StatusCode.NOT_FOUND
    assert still_alive(started) == []
    assert descendants() - before == set()
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address.split(":"))
    finished, cut = await read_stream(short), await read_stream(long)
    await channel.close(None)
    assert finished.error is None, "what can end within the time for draining ends"
    assert len(finished.ids) == 100
    assert cut.code is grpc.StatusCode.UNAVAILABLE, cut.error
    assert set(cut.ids) == {older.token}
    secrets = [path for path in (tmp_path / "home").rglob("*") if path.is_file() and "secret" in str(path)]
    assert secrets
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)

    # Again: the same home, one cached file damaged meanwhile.
    cached = [path for path in (tmp_path / "home" / "cache").rglob("*.safetensors") if newer.sha256 in str(path)]
    assert len(cached) == 1
    damaged = bytearray(cached[0].read_bytes())
    damaged[-2] ^= 1
    cached[0].chmod(0o600)
    cached[0].write_bytes(damaged)
    async with running(tmp_path, options, admin_key) as world:
        assert world.platform.admin_key is None, "it was told once"
        now = datetime.now(UTC)
        pages = world.admin.query_usage_pages(owner.name, now - HOUR, now + HOUR)
        counted = {one.reason: one.requests async for page in pages for one in page.unbilled}
        assert counted == {"MODEL_NOT_FOUND": 1}, "what was refused just before it stopped"
        tiers = {}
        for tenant, model, tracer in (
            (owner, older.name, older),
            (owner, older.adapter, newer),
            (owner, alias, older),
            (owner, cold.adapter, cold),
            (guest, older.adapter, older),
            (guest, BASE, THE_BASE),
        ):
            tiers[model] = (await world.right(tenant.key, model, tracer)).timings.adapter_tier
        assert tiers[older.name] == pb.ADAPTER_TIER_DISK
        assert tiers[cold.adapter] == pb.ADAPTER_TIER_OBJECT_STORE
        for key, model, code in (
            (gone.key, BASE, grpc.StatusCode.UNAUTHENTICATED),
            (owner.key, withdrawn.adapter, grpc.StatusCode.FAILED_PRECONDITION),
            (guest.key, newer.name, grpc.StatusCode.FAILED_PRECONDITION),
            (guest.key, cold.adapter, grpc.StatusCode.NOT_FOUND),
        ):
            answer = await world.stream(key, ask(model))
            assert (answer.code, answer.messages) == (code, []), model
        listed = await world.admin_call(
            world.adapter_admin.ListAdapterVersions, adapters.ListAdapterVersionsRequest(parent=older.adapter)
        )
        assert [version.sha256 for version in listed.versions] == [newer.sha256, older.sha256]
        newest = await world.push(older.adapter, 5)
        assert newest.version == 3
        await world.settle()
        await world.right(owner.key, older.adapter, newest)
    assert descendants() - before == set()


async def test_a_base_that_cannot_be_served_is_refused_at_start_by_name(tracer_base: Path, tmp_path: Path) -> None:
    """... and what had been started for it is gone."""
    base = tmp_path / "base"
    shutil.copytree(tracer_base, base)
    config = json.loads((base / "config.json").read_text()) | {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}
    (base / "config.json").write_text(json.dumps(config))
    before = descendants()
    with pytest.raises(LorryError, match="rope_scaling"):
        async with Platform(settings(tmp_path / "home", base)):
            pytest.fail("it was served")
    assert descendants() - before == set()


@contextmanager
def serving(home: Path, base: Path) -> Iterator[subprocess.Popen[str]]:
    """`lorry serve` as a process of its own, with its output on a pipe."""
    command = [sys.executable, "-c", "import sys; from lorry.cli import main; sys.exit(main())", "serve"]
    command += ["--home", str(home), "--base", str(base), "--port", "0", "--dtype", "float32"]
    command += ["--memory-budget", "16MiB", "--ops-port", "0"]
    # A short name, since a socket lies below it; what a killed process leaves there goes with it.
    with tempfile.TemporaryDirectory(prefix="e2e-") as temporary:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": temporary},
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def read_until_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("ready"):
            return "".join(lines)
    raise AssertionError("".join(lines))


async def test_lorry_serve_takes_its_children_with_it(tracer_base: Path, tmp_path: Path) -> None:
    """Killed without a word: engine and S3 server end too. (Asked to stop: test_issue3_serve.)"""
    with serving(tmp_path / "home", tracer_base) as process:
        said = await asyncio.to_thread(read_until_ready, process)
        address = re.search(r"gateway and admin API: (\S+)", said)
        assert address, said
        assert re.search(r"shown this once: (\S+)", said)
        children = descendants(process.pid)
        commands = " ".join(names(children))
        assert "lorry.engine.process" in commands
        assert "weed" in commands
        async with AsyncClient(address[1], "lorry_nonsense") as client:
            with pytest.raises(Unauthenticated):
                await client.list_models()
        process.kill()
        assert await asyncio.to_thread(process.wait, 30) == -signal.SIGKILL
        assert await asyncio.to_thread(still_alive, children, 20) == []
