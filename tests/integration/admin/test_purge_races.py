"""A version that is being made while its adapter is deleted and purged: it is not made, and leaves no bytes behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1.tenant_admin_pb2 import VerifyAuditRequest
from tests.integration.admin.conftest import Client, Platform
from tests.unit.adapters import craft

JSON, COPY = "tenants/anna/adapters/json", "tenants/anna/adapters/copy"


@pytest.fixture
async def anna(with_base: Platform) -> Client:
    client = await with_base.tenant("anna")
    for name in ("json", "copy"):
        await client.call("CreateAdapter", pb.CreateAdapterRequest(parent="tenants/anna", adapter_id=name))
    return client


def stored(platform: Platform) -> list[str]:
    """Names of all objects."""
    return sorted(file.name for file in platform.store_root.rglob("*") if file.is_file())


async def request(client: Client, adapter: str, folder: Path) -> pb.CreateAdapterVersionRequest:
    upload = await client.upload(adapter, folder)
    return pb.CreateAdapterVersionRequest(parent=adapter, upload=upload, base="models/tiny")


def while_it_puts(platform: Platform, client: Client, *, purge: bool) -> None:
    """Before the first object of the next version is put, its adapter goes."""
    put = platform.store.put_file
    todo = [True]

    async def put_file(key: str, path: Path) -> None:
        if todo:
            todo.clear()
            await client.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
            if purge:
                await client.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
        await put(key, path)

    platform.store.put_file = put_file  # type: ignore[method-assign]  # the moment that matters


@pytest.mark.parametrize("purge", [True, False])
async def test_none_is_made_of_an_adapter_that_went_meanwhile(
    with_base: Platform, anna: Client, tmp_path: Path, purge: bool
) -> None:
    wanted = await request(anna, JSON, craft.write_adapter(tmp_path / "a"))
    while_it_puts(with_base, anna, purge=purge)
    refused = await anna.error("CreateAdapterVersion", wanted)
    assert type(refused) is errors.FailedPrecondition, refused
    assert "deleted" in refused.message
    assert (await anna.call("GetAdapter", pb.GetAdapterRequest(name=JSON))).last_version == 0
    assert stored(with_base) == [], "a receipt has said that nothing is left, or a purge could not know of it"
    assert (await anna.call("VerifyAudit", VerifyAuditRequest(parent="tenants/anna"))).intact


async def test_what_others_stand_on_stays(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    folder = craft.write_adapter(tmp_path / "a")
    await anna.call("CreateAdapterVersion", await request(anna, COPY, folder))
    before = stored(with_base)
    wanted = await request(anna, JSON, folder)
    while_it_puts(with_base, anna, purge=True)
    assert type(await anna.error("CreateAdapterVersion", wanted)) is errors.FailedPrecondition
    assert stored(with_base) == before != []


async def test_one_that_was_rejected_is_not_recorded_either(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    wanted = await request(anna, JSON, craft.write_adapter(tmp_path / "a", weights=b"pickle"))
    with_base.gate.open.clear()
    watched = anna.watch(wanted.upload)
    await watched.initial_metadata()
    made = asyncio.create_task(anna.error("CreateAdapterVersion", wanted))
    await watched.read()
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    with_base.gate.open.set()
    assert type(await made) is errors.FailedPrecondition
    assert (await anna.call("GetAdapter", pb.GetAdapterRequest(name=JSON))).last_version == 0


async def test_what_is_asked_of_a_purged_one_is_told_that_there_is_no_way_back(anna: Client) -> None:
    alias = pb.SetAliasRequest(parent=JSON, alias_id="prod", version=1)
    upload = pb.CreateUploadRequest(parent=JSON)
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    for method, asked in (("SetAlias", alias), ("CreateUpload", upload)):
        assert "undelete it first" in (await anna.error(method, asked)).message
    await anna.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
    for method, asked in (("SetAlias", alias), ("CreateUpload", upload)):
        refused = await anna.error(method, asked)
        assert type(refused) is errors.FailedPrecondition
        assert "purged" in refused.message
        assert "undelete" not in refused.message
