"""Starting and stopping: nothing is left behind, nothing is forgotten, and one home has one platform."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from lorry.api.v1 import adapter_admin_pb2 as adapters
from lorry.api.v1 import generate_pb2 as pb
from lorry.cli.platform import Platform
from lorry.client import Client
from lorry.errors import FailedPrecondition, LorryError
from tests.e2e.world import BASE, THE_BASE, ask, fill, running, settings
from tests.support.processes import descendants, names, still_alive


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
        left_running = world.start(owner.key, ask(older.adapter, 4000))
        await anext(aiter(left_running))
    assert still_alive(started) == []
    assert descendants() - before == set()
    assert not folder.exists()
    with pytest.raises(OSError, match="refused"):
        await asyncio.open_connection(*address.split(":"))
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
    base = tmp_path / "base"
    base.mkdir()
    for file in tracer_base.iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    config = json.loads((base / "config.json").read_text()) | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    (base / "config.json").write_text(json.dumps(config))
    before = descendants()
    with pytest.raises(LorryError, match="rope_scaling"):
        async with Platform(settings(tmp_path / "home", base)):
            pytest.fail("it was served")
    assert descendants() - before == set()


async def test_a_port_that_is_taken_is_said_and_leaves_nothing_behind(tracer_base: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options = settings(tmp_path / "home", tracer_base)
    before = descendants()
    async with server:
        with pytest.raises(LorryError, match=str(port)):
            async with Platform(replace(options, gateway=replace(options.gateway, port=port))):
                pytest.fail("two servers on one port")
    assert descendants() - before == set()


@pytest.fixture
async def served(tracer_base: Path, tmp_path: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """`lorry serve` as a process of its own, once it is ready; its first lines of output in ``args``' place."""
    command = [sys.executable, "-c", "import sys; from lorry.cli import main; sys.exit(main())", "serve"]
    command += ["--home", str(tmp_path / "home"), "--base", str(tracer_base), "--port", "0", "--dtype", "float32"]
    command += ["--memory-budget-mb", "16"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def read_until_ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("ready"):
            return "".join(lines)
    raise AssertionError("".join(lines))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_lorry_serve_takes_its_children_with_it(served: subprocess.Popen[str], how: signal.Signals) -> None:
    """Asked to stop, or killed without a word: engine and S3 server end too."""
    said = await asyncio.to_thread(read_until_ready, served)
    key = re.search(r"shown this once: (\S+)", said)
    address = re.search(r"gateway and admin API: (\S+)", said)
    assert key
    assert address
    children = descendants(served.pid)
    assert len(children) >= 2, names(children)
    with Client(address[1], "lorry_nonsense") as client, pytest.raises(LorryError) as caught:
        client.list_models()
    assert caught.value.grpc_code == "UNAUTHENTICATED"
    os.kill(served.pid, how)
    status = await asyncio.to_thread(served.wait, 30)
    assert status == (0 if how is signal.SIGTERM else -how)
    assert still_alive(children, within_s=0 if how is signal.SIGTERM else 20) == []


