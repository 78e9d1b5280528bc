"""A purge while the object store is down: nothing else of the registry waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from tests.integration.admin.conftest import Platform
from tests.unit.adapters import craft

JSON = "tenants/anna/adapters/json"


class Down:
    """A store that answers nobody; ``asked`` is set once somebody waits for it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.give_up = asyncio.Event()

    async def delete(self, key: str) -> None:
        await self.exists(key)

    async def exists(self, key: str) -> bool:
        self.asked.set()
        await self.give_up.wait()
        raise errors.ObjectStoreUnavailable("store: does not answer", retry_after_s=2.0)


async def test_a_key_is_revoked_while_a_purge_waits(
    with_base: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna, admin = await with_base.tenant("anna"), with_base.admin
    await anna.call("CreateAdapter", pb.CreateAdapterRequest(parent="tenants/anna", adapter_id="json"))
    upload = await anna.upload(JSON, craft.write_adapter(tmp_path / "a"))
    request = pb.CreateAdapterVersionRequest(parent=JSON, upload=upload, base="models/tiny")
    await anna.call("CreateAdapterVersion", request)
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    keys = (await anna.call("ListApiKeys", tenant_pb.ListApiKeysRequest(parent="tenants/anna"))).api_keys
    down, up = Down(), with_base.store.now
    monkeypatch.setattr(with_base.store, "now", down)
    purge = asyncio.create_task(admin.error("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON)))
    await down.asked.wait()
    async with asyncio.timeout(3):
        await admin.call("RevokeApiKey", tenant_pb.RevokeApiKeyRequest(name=keys[0].name))
    assert not purge.done()
    down.give_up.set()
    assert type(await purge) is errors.ObjectStoreUnavailable
    monkeypatch.setattr(with_base.store, "now", up)
    receipt = await admin.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
    assert receipt.versions[0].files == 2
