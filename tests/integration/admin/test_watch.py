"""WatchAdapterVersion: rows while the validation runs, and again ever after."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from lorry import errors
from lorry.api.status import error_from_rpc
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.registry.adapters import watching
from tests.integration.admin.conftest import Client, Platform
from tests.unit.adapters import craft

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not name it
JSON = "tenants/anna/adapters/json"


@pytest.fixture
async def anna(with_base: Platform) -> Client:
    client = await with_base.tenant("anna")
    await client.call("CreateAdapter", pb.CreateAdapterRequest(parent="tenants/anna", adapter_id="json"))
    return client


@pytest.fixture
async def upload(anna: Client, tmp_path: Path) -> str:
    return await anna.upload(JSON, craft.write_adapter(tmp_path / "good"))


def create(anna: Client, upload: str, **fields: Any) -> asyncio.Task[Any]:
    request = pb.CreateAdapterVersionRequest(parent=JSON, upload=upload, base="models/tiny", **fields)
    return asyncio.create_task(anna.call("CreateAdapterVersion", request))


async def read(call: Any) -> tuple[list[pb.ValidationCheck], pb.AdapterVersion | None, errors.LorryError | None]:
    checks: list[pb.ValidationCheck] = []
    version, error = None, None
    try:
        async with asyncio.timeout(20):
            while (message := await call.read()) is not EOF:
                assert version is None, "nothing follows the version"
                if message.HasField("check"):
                    checks.append(message.check)
                else:
                    version = message.version
    except grpc.RpcError as broken:
        error = error_from_rpc(broken)
    return checks, version, error


async def test_rows_come_while_the_call_runs(with_base: Platform, anna: Client, upload: str) -> None:
    with_base.gate.open.clear()
    watch = anna.watch(upload)
    await watch.initial_metadata()
    made = create(anna, upload)
    first = await watch.read()
    assert first.HasField("check")
    assert not made.done(), "the validation is held back after its first row"
    late = anna.watch(upload)
    assert (await late.read()).check == first.check, "who comes later gets what there was"
    with_base.gate.open.set()
    version = await made
    assert first.check == version.checks[0]
    assert await read(watch) == (list(version.checks[1:]), version, None)
    assert await read(late) == (list(version.checks[1:]), version, None)
    assert await read(anna.watch(upload)) == (list(version.checks), version, None), "an upload that was just used up"


async def test_a_finished_version_is_replayed(anna: Client, upload: str, with_base: Platform, tmp_path: Path) -> None:
    version = await create(anna, upload)
    assert await read(anna.watch(version.name)) == (list(version.checks), version, None)
    bad = await anna.upload(JSON, craft.write_adapter(tmp_path / "bad", {**craft.CONFIG, "r": 0}))
    watch = anna.watch(bad)
    await watch.initial_metadata()
    with pytest.raises(errors.AdapterRefused):
        await create(anna, bad)
    checks, rejected, error = await read(watch)
    assert error is None
    assert rejected is not None
    assert rejected.state == pb.ADAPTER_VERSION_STATE_REJECTED
    assert [check for check in checks if check.outcome == "fail"]
    assert await read(anna.watch(rejected.name)) == (checks, rejected, None)


async def test_validate_only_ends_without_a_number(anna: Client, upload: str) -> None:
    watch = anna.watch(upload)
    await watch.initial_metadata()
    found = await create(anna, upload, validate_only=True)
    assert await read(watch) == (list(found.checks), found, None)
    assert found.version == 0
    watch = anna.watch(upload)
    await watch.initial_metadata()
    version = await create(anna, upload)
    assert await read(watch) == (list(version.checks), version, None), "the next call, not the one that made nothing"
    assert (await read(anna.watch(upload)))[1] == version, "the newest attempt"


async def test_a_call_that_makes_nothing_ends_the_watch_with_its_error(
    with_base: Platform, anna: Client, upload: str
) -> None:
    with_base.gate.error = errors.Unavailable("no validator", retry_after_s=1.0)
    watch = anna.watch(upload)
    await watch.initial_metadata()
    with pytest.raises(errors.Unavailable):
        await create(anna, upload)
    checks, version, error = await read(watch)
    assert (len(checks), version, type(error)) == (1, None, errors.Unavailable)
    with_base.gate.error = ValueError("secret of the server")
    watch = anna.watch(upload)
    await watch.initial_metadata()
    with pytest.raises(errors.InternalError):
        await create(anna, upload)
    _, _, error = await read(watch)
    assert type(error) is errors.InternalError, "of this call, not of the one before"
    assert "secret" not in error.message
    with_base.gate.error = None
    assert (await create(anna, upload)).version == 1, "the upload is still there"


async def test_a_call_that_is_cancelled_ends_the_watch(with_base: Platform, anna: Client, upload: str) -> None:
    with_base.gate.open.clear()
    watch = anna.watch(upload)
    await watch.initial_metadata()
    made = create(anna, upload)
    await watch.read()
    made.cancel()
    _, version, error = await read(watch)
    assert version is None
    assert type(error) is errors.RequestCancelled
    with_base.gate.open.set()
    assert (await create(anna, upload)).version == 1


async def test_only_the_owner_watches(with_base: Platform, anna: Client, upload: str) -> None:
    other = await with_base.tenant("other")
    version = await create(anna, upload)
    unknown = (f"{JSON}/uploads/{'0' * 32}", f"{JSON}/versions/9")
    for name in (upload, version.name, *unknown):
        for who in [other, anna] if name in unknown else [other]:
            call = who.watch(name)
            found = await read(call)
            assert found[:2] == ([], None), name
            assert type(found[2]) is errors.ResourceNotFound, (name, await call.code(), call)
    for name in ("", JSON, "models/tiny", "x/uploads/y"):
        assert type((await read(anna.watch(name)))[2]) is errors.InvalidRequest, name


async def test_what_watches_is_bounded_and_leaves_nothing(
    with_base: Platform, anna: Client, upload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WATCHERS_MAX", 1)
    first = anna.watch(upload)
    await first.initial_metadata()
    assert type((await read(anna.watch(upload)))[2]) is errors.Overloaded
    attempts = with_base.versions._attempts
    assert len(attempts) == 1
    first.cancel()
    async with asyncio.timeout(20):
        while len(attempts):
            await asyncio.sleep(0.002)


async def test_a_watch_ends_when_its_upload_is_gone(
    with_base: Platform, anna: Client, upload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_S", 0.01)
    watch = anna.watch(upload)
    await watch.initial_metadata()
    await with_base.versions._uploads.discard(upload.rpartition("/")[2])
    assert type((await read(watch))[2]) is errors.ResourceNotFound


async def test_a_server_that_goes_down_ends_every_watch(with_base: Platform, anna: Client, upload: str) -> None:
    watch = anna.watch(upload)
    await watch.initial_metadata()
    with_base.versions.stop_watching()
    assert type((await read(watch))[2]) is errors.Draining
