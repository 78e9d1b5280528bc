"""A purge that another process ran: this one's engines forget what they have of it, and the receipt says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lorry import errors
from lorry.adapters.manifest import AdapterRef
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry.engine.contract import Forgotten
from lorry.engine.fake import FAKE_BYTES, FakeEngine
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, BaseDigest
from lorry.registry.adapters import content, following
from lorry.registry.adapters.following import PurgeFollower
from lorry.registry.names import AdapterName
from lorry_admin import EngineReplicas
from tests.integration.admin.conftest import BASE_SHA256, Client, Platform
from tests.unit.adapters import craft
from tests.unit.engine_contract.fakes import fake_engine

JSON, COPY = "tenants/anna/adapters/json", "tenants/bert/adapters/copy"


class Elsewhere:
    """Another process on the registry, with an engine of its own."""

    def __init__(self, platform: Platform) -> None:
        self.engine: FakeEngine = fake_engine(BaseDigest(BASE_SHA256), "engine-1")
        self._platform = platform
        self.purges = self.started_again()

    def started_again(self) -> PurgeFollower:
        """Its engine has what it had."""
        return self._platform.registry.purges(EngineReplicas([self.engine]))

    async def load(self, client: Client, version: pb.AdapterVersion) -> AdapterRef:
        adapter = version.name.partition("/versions/")[0]
        uid = (await client.call("GetAdapter", pb.GetAdapterRequest(name=adapter))).uid
        ref = AdapterRef(AdapterDigest(version.sha256), "", (), AdapterScope(uid))
        await self.engine.preload(ref, 1.0)
        return ref

    async def has(self, ref: AdapterRef) -> bool:
        return (await self.engine.whereabouts(ref.key)).disk


async def registered(platform: Platform, adapter: str, folder: Path) -> tuple[Client, pb.AdapterVersion]:
    _, tenant, _, name = adapter.split("/")
    client = await platform.tenant(tenant)
    await client.call("CreateAdapter", pb.CreateAdapterRequest(parent=f"tenants/{tenant}", adapter_id=name))
    upload = await client.upload(adapter, folder)
    request = pb.CreateAdapterVersionRequest(parent=adapter, upload=upload, base="models/tiny")
    return client, await client.call("CreateAdapterVersion", request)


async def loaded_elsewhere(platform: Platform, folder: Path) -> tuple[Client, Elsewhere, AdapterRef]:
    anna, version = await registered(platform, JSON, craft.write_adapter(folder / "a"))
    other = Elsewhere(platform)
    return anna, other, await other.load(anna, version)


async def purge(client: Client, adapter: str) -> pb.PurgeReceipt:
    await client.call("DeleteAdapter", pb.DeleteAdapterRequest(name=adapter))
    receipt: pb.PurgeReceipt = await client.call("PurgeAdapter", pb.PurgeAdapterRequest(name=adapter))
    return receipt


async def dropped(client: Client, adapter: str) -> dict[str, int]:
    """Bytes on disk by replica, as the receipt has them."""
    receipt = (await client.call("GetAdapter", pb.GetAdapterRequest(name=adapter))).purge_receipt
    return {one.replica: one.disk_bytes for one in receipt.replicas}


async def test_engines_behind_others_forget_and_the_receipt_says_so(with_base: Platform, tmp_path: Path) -> None:
    folder = craft.write_adapter(tmp_path / "a")
    anna, version = await registered(with_base, JSON, folder)
    bert, copy = await registered(with_base, COPY, folder)
    assert copy.sha256 == version.sha256
    other = Elsewhere(with_base)
    mine, same = await other.load(anna, version), await other.load(bert, copy)
    assert await other.purges.follow() == 0
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    assert await other.purges.follow() == 0
    assert await other.has(mine), "deleted is not purged: it may be undeleted"
    receipt = await anna.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
    assert [one.replica for one in receipt.replicas] == ["engine-0"]
    assert await other.purges.follow() == 1
    assert not await other.has(mine)
    assert await other.has(same), "equal bytes of another tenant stay"
    assert await dropped(anna, JSON) == {"engine-0": 0, "engine-1": FAKE_BYTES}
    assert await other.purges.follow() == 0
    assert await dropped(anna, JSON) == {"engine-0": 0, "engine-1": FAKE_BYTES}
    events = await with_base.admin.call("ListAuditEvents", tenant_pb.ListAuditEventsRequest(parent="tenants/anna"))
    followed = [event for event in events.events if event.action == "adapter.purge_follow"]
    assert [(event.subject, event.actor) for event in followed] == [(JSON, "system")]
    told = await with_base.admin.call("VerifyAudit", tenant_pb.VerifyAuditRequest(parent="tenants/anna"))
    assert told.intact


async def test_who_was_away_follows_when_it_is_back(with_base: Platform, tmp_path: Path) -> None:
    anna, other, ref = await loaded_elsewhere(with_base, tmp_path)
    await purge(anna, JSON)
    assert await other.has(ref)
    again = other.started_again()
    assert await again.follow() == 1
    assert not await other.has(ref)
    assert await again.follow() == 0


async def test_an_engine_that_does_not_answer_is_asked_again(with_base: Platform, tmp_path: Path) -> None:
    anna, other, ref = await loaded_elsewhere(with_base, tmp_path)
    assert await other.purges.follow() == 0
    await purge(anna, JSON)
    for follower in (other.purges, other.started_again()):
        await other.engine.preload(ref, 1.0)
        other.engine.die()
        with pytest.raises(errors.EngineUnavailable):
            await follower.follow()
        other.engine.revive()
        await other.engine.preload(ref, 1.0)
        assert await follower.follow() == 1
        assert not await other.has(ref)


async def test_one_that_cannot_be_forgotten_holds_up_no_other(
    with_base: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_PAGE", 1)
    folder, names = craft.write_adapter(tmp_path / "a"), ("tenants/anna/adapters/a", "tenants/bert/adapters/b")
    other, refs = Elsewhere(with_base), []
    assert await other.purges.follow() == 0
    for name in names:
        client, version = await registered(with_base, name, folder)
        refs.append(await other.load(client, version))
        await purge(client, name)
    forget, stuck = other.engine.forget, min(refs, key=lambda ref: ref.scope)

    async def hanging(adapter: AdapterKey) -> Forgotten:
        if adapter == stuck.key:
            raise errors.EngineUnavailable("the engine waits for its store")
        return await forget(adapter)

    with monkeypatch.context() as patch:
        patch.setattr(other.engine, "forget", hanging)
        with pytest.raises(errors.EngineUnavailable):
            await other.purges.follow()
    assert [await other.has(ref) for ref in refs] == [ref is stuck for ref in refs]
    assert await other.purges.follow() == 1
    assert not await other.has(stuck)
    assert await other.purges.follow() == 0


async def test_what_could_not_be_noted_is_noted_by_the_next_round(
    with_base: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna, other, ref = await loaded_elsewhere(with_base, tmp_path)
    await purge(anna, JSON)

    async def locked(*_: object) -> None:
        raise errors.Unavailable("registry: its database is locked", retry_after_s=1.0)

    for follower in (other.purges, other.started_again()):
        await other.engine.preload(ref, 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(content, "locked", locked)
            with pytest.raises(errors.Unavailable):
                await follower.follow()
        assert not await other.has(ref)
        assert await follower.follow() == 1
    assert await dropped(anna, JSON) == {"engine-0": 0, "engine-1": 2 * FAKE_BYTES}


async def test_what_came_back_goes_again(with_base: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a request of before, or a preload that was under way, where another adapter has equal bytes."""
    monkeypatch.setattr(following, "AGAIN", 3)
    anna, other, ref = await loaded_elsewhere(with_base, tmp_path)
    await purge(anna, JSON)
    assert await other.purges.follow() == 1
    await other.engine.preload(ref, 1.0)
    assert sum([await other.purges.follow() for _ in range(3)]) == 1
    assert not await other.has(ref)


async def test_a_registry_that_was_set_back(with_base: Platform, tmp_path: Path) -> None:
    """Its epochs begin again before those that were seen."""
    anna, other, ref = await loaded_elsewhere(with_base, tmp_path)
    assert await other.purges.follow() == 0
    other.purges._epoch = 1000
    await purge(anna, JSON)
    assert await other.purges.follow() == 1
    assert not await other.has(ref)


async def test_two_purges_at_once_keep_each_others_receipt(with_base: Platform, tmp_path: Path) -> None:
    anna, other, _ = await loaded_elsewhere(with_base, tmp_path)
    begun, go = asyncio.Event(), asyncio.Event()
    forget = other.engine.forget

    async def slow(adapter: AdapterKey) -> Forgotten:
        begun.set()
        await go.wait()
        return await forget(adapter)

    other.engine.forget = slow  # type: ignore[method-assign]  # as it is, but late
    beside = with_base.registry.lifecycle(with_base.store, EngineReplicas([other.engine]))
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    snapshot = await with_base.source.refresh()
    caller = snapshot.authenticate(anna.key, 0)
    late = asyncio.create_task(beside.purge(caller, AdapterName("anna", "json")))
    await begun.wait()
    whole = await anna.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
    go.set()
    await late
    receipt = (await anna.call("GetAdapter", pb.GetAdapterRequest(name=JSON))).purge_receipt
    assert list(receipt.versions) == list(whole.versions) != []
    assert await dropped(anna, JSON) == {"engine-0": 0, "engine-1": FAKE_BYTES}


async def test_more_changes_than_one_round_takes(
    with_base: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna, other, ref = await loaded_elsewhere(with_base, tmp_path)
    assert await other.purges.follow() == 0
    for number in range(3):
        await with_base.admin.call("CreateTenant", tenant_pb.CreateTenantRequest(tenant_id=f"other-{number}"))
    await purge(anna, JSON)
    monkeypatch.setattr(following, "BATCH", 2)
    monkeypatch.setattr(following, "_PAGE", 1)
    assert await other.purges.follow() == 1
    assert not await other.has(ref)
    assert await other.purges.follow() == 0
