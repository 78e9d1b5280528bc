"""An adapter's end: deleted, undeleted, purged with a receipt; and a version's places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.engine.contract import Whereabouts
from lorry.engine.fake import FAKE_BYTES
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope
from lorry.registry.adapters.lifecycle import RETAIN, LifecycleService
from lorry_admin import EngineReplicas
from tests.integration.admin.conftest import Client, Platform
from tests.unit.adapters import craft

JSON, COPY = "tenants/anna/adapters/json", "tenants/bert/adapters/copy"


async def register(client: Client, adapter: str, folder: Path) -> pb.AdapterVersion:
    request = pb.CreateAdapterVersionRequest(
        parent=adapter, upload=await client.upload(adapter, folder), base="models/tiny"
    )
    made: pb.AdapterVersion = await client.call("CreateAdapterVersion", request)
    return made


async def owner(platform: Platform, adapter: str) -> Client:
    _, tenant, _, name = adapter.split("/")
    client = await platform.tenant(tenant)
    await client.call("CreateAdapter", pb.CreateAdapterRequest(parent=f"tenants/{tenant}", adapter_id=name))
    return client


@pytest.fixture
async def anna(with_base: Platform) -> Client:
    return await owner(with_base, JSON)


def objects(platform: Platform, version: pb.AdapterVersion) -> list[str]:
    folder = platform.store_root / "adapters" / "sha256" / version.sha256
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def counted_deletes(platform: Platform) -> list[str]:
    """Keys that the store is asked to delete from now on."""
    asked: list[str] = []
    delete = platform.store.delete

    async def count(key: str) -> None:
        asked.append(key)
        await delete(key)

    platform.store.delete = count  # type: ignore[method-assign]  # it is asked as before
    return asked


async def held(platform: Platform, client: Client, adapter: str, sha256: str) -> Whereabouts:
    """What the engine has of the adapter's own copy."""
    uid = (await client.call("GetAdapter", pb.GetAdapterRequest(name=adapter))).uid
    return await platform.engine.whereabouts(AdapterKey(AdapterDigest(sha256), AdapterScope(uid)))


async def resolves(platform: Platform, client: Client, name: str = JSON) -> str:
    """The digest that the name means, or the reason why it means none."""
    snapshot = await platform.source.refresh()
    try:
        return snapshot.resolve(snapshot.authenticate(client.key, 0), name, "", 0).sha256
    except errors.LorryError as error:
        return error.reason


async def names(client: Client, **fields: Any) -> Sequence[str]:
    request = pb.ListAdaptersRequest(parent="tenants/anna", **fields)
    return [adapter.name for adapter in (await client.call("ListAdapters", request)).adapters]


async def test_update(anna: Client) -> None:
    before = await anna.call("GetAdapter", pb.GetAdapterRequest(name=JSON))
    mask = FieldMask(paths=["display_name"])
    wanted = pb.Adapter(name=JSON, display_name="JSON only", etag=before.etag)
    after = await anna.call("UpdateAdapter", pb.UpdateAdapterRequest(adapter=wanted, update_mask=mask))
    assert (after.display_name, after.uid) == ("JSON only", before.uid)
    assert after.etag != before.etag
    stale = await anna.error("UpdateAdapter", pb.UpdateAdapterRequest(adapter=wanted, update_mask=mask))
    assert isinstance(stale, errors.StaleEtag)
    for paths in ([], ["name"], ["display_name", "uid"]):
        request = pb.UpdateAdapterRequest(adapter=pb.Adapter(name=JSON), update_mask=FieldMask(paths=paths))
        assert isinstance(await anna.error("UpdateAdapter", request), errors.InvalidRequest)


async def test_deleted_is_unknown_and_can_be_taken_back(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    made = await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    assert await resolves(with_base, anna) == made.sha256
    deleted = await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    kept = deleted.purge_time.ToDatetime(UTC) - deleted.delete_time.ToDatetime(UTC)
    assert abs(kept - RETAIN) < timedelta(seconds=1)
    assert await resolves(with_base, anna) == "MODEL_NOT_FOUND"
    assert await names(anna) == []
    assert await names(anna, show_deleted=True) == [JSON]
    again = await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    assert (again.delete_time, again.etag) == (deleted.delete_time, deleted.etag)
    assert isinstance(await anna.error("CreateUpload", pb.CreateUploadRequest(parent=JSON)), errors.FailedPrecondition)
    back = await anna.call("UndeleteAdapter", pb.UndeleteAdapterRequest(name=JSON, etag=again.etag))
    assert not back.HasField("delete_time")
    assert await resolves(with_base, anna) == made.sha256
    nothing = await anna.error("UndeleteAdapter", pb.UndeleteAdapterRequest(name=JSON))
    assert isinstance(nothing, errors.FailedPrecondition)
    taken = await anna.error("CreateAdapter", pb.CreateAdapterRequest(parent="tenants/anna", adapter_id="json"))
    assert isinstance(taken, errors.AlreadyExists)


async def test_purge_destroys_the_bytes_everywhere(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    made = await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    name = f"{JSON}/versions/1"
    await anna.call("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=name))
    early = await anna.error("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
    assert isinstance(early, errors.FailedPrecondition)
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    receipt = await anna.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
    assert objects(with_base, made) == []
    where = await held(with_base, anna, JSON, made.sha256)
    assert (where.device, where.host, where.disk) == (False, False, False)
    (version,) = receipt.versions
    assert (version.version, version.sha256, version.files, version.bytes) == (1, made.sha256, 2, made.size_bytes)
    (replica,) = receipt.replicas
    assert (replica.replica, replica.disk_bytes, replica.host_bytes) == ("engine-0", FAKE_BYTES, FAKE_BYTES)
    assert await anna.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON)) == receipt
    assert (await anna.call("GetAdapter", pb.GetAdapterRequest(name=JSON))).purge_receipt == receipt
    found = await anna.call("GetAdapterVersion", pb.GetAdapterVersionRequest(name=name))
    assert found.state == pb.ADAPTER_VERSION_STATE_PURGED
    assert found.files == made.files
    gone = await anna.error("UndeleteAdapter", pb.UndeleteAdapterRequest(name=JSON))
    assert isinstance(gone, errors.FailedPrecondition)
    assert await resolves(with_base, anna) == "MODEL_NOT_FOUND"


async def test_equal_bytes_of_another_tenant_stay_and_nobody_is_told(
    with_base: Platform, anna: Client, tmp_path: Path
) -> None:
    bert = await owner(with_base, COPY)
    folder = craft.write_adapter(tmp_path / "a")
    made = await register(anna, JSON, folder)
    await anna.call("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=f"{JSON}/versions/1"))
    copy = await register(bert, COPY, folder)
    assert copy.sha256 == made.sha256
    assert not (await held(with_base, bert, COPY, made.sha256)).host, "it has a copy of its own, not loaded yet"
    await bert.call("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=f"{COPY}/versions/1"))
    deleted = counted_deletes(with_base)
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    receipt = await anna.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
    assert not (await held(with_base, anna, JSON, made.sha256)).host
    assert len(objects(with_base, made)) == 2
    assert await resolves(with_base, bert, COPY) == copy.sha256
    assert (await held(with_base, bert, COPY, made.sha256)).host
    assert (receipt.versions[0].files, receipt.replicas[0].host_bytes) == (2, FAKE_BYTES)  # as if it were alone
    await bert.call("DeleteAdapter", pb.DeleteAdapterRequest(name=COPY))
    await bert.call("PurgeAdapter", pb.PurgeAdapterRequest(name=COPY))
    assert objects(with_base, made) == []
    assert len(deleted) == 2 * len(made.files), "both purges asked the store for as much"
    assert not (await held(with_base, bert, COPY, made.sha256)).host


async def test_bytes_that_a_purge_takes_meanwhile_are_put_again(
    with_base: Platform, anna: Client, tmp_path: Path
) -> None:
    """Between putting its objects and its row, equal bytes of another are purged."""
    bert = await owner(with_base, COPY)
    folder = craft.write_adapter(tmp_path / "a")
    await register(anna, JSON, folder)
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    put, store = with_base.store.put_file, with_base.store
    left = [2]

    async def put_then_purge(key: str, path: Path) -> None:
        await put(key, path)
        left[0] -= 1
        if left[0] == 0:
            await anna.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))

    store.put_file = put_then_purge  # type: ignore[method-assign]  # the moment that matters
    copy = await register(bert, COPY, folder)
    assert left[0] < 0
    assert len(objects(with_base, copy)) == 2


async def test_a_purge_that_cannot_finish_goes_on(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    with_base.engine.die()
    down = await anna.error("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
    assert isinstance(down, errors.EngineUnavailable)
    undone = await anna.error("UndeleteAdapter", pb.UndeleteAdapterRequest(name=JSON))
    assert isinstance(undone, errors.FailedPrecondition)
    with_base.engine.revive()
    receipt = await anna.call("PurgeAdapter", pb.PurgeAdapterRequest(name=JSON))
    assert receipt.versions[0].files == 2


async def test_what_is_due_is_purged_by_itself(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    made = await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    assert await with_base.lifecycle.purge_due() == 0
    engines = EngineReplicas([with_base.engine])
    later = LifecycleService(
        with_base.registry.database,
        with_base.store,
        engines,
        lambda: datetime.now(UTC) + RETAIN + timedelta(hours=1),
    )
    assert await later.purge_due() == 1
    assert await later.purge_due() == 0
    assert objects(with_base, made) == []


async def test_places(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    name = f"{JSON}/versions/1"
    before = await anna.call("GetResidency", pb.GetResidencyRequest(name=name))
    assert [(r.replica, r.device, r.host, r.disk) for r in before.replicas] == [("engine-0", False, False, False)]
    after = await anna.call("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=name))
    assert after.replicas[0].host
    evicted = await anna.call("EvictAdapterVersion", pb.EvictAdapterVersionRequest(name=name))
    assert not evicted.replicas[0].device
    long = pb.PreloadAdapterVersionRequest(name=name, wait=Duration(seconds=3600))
    assert isinstance(await anna.error("PreloadAdapterVersion", long), errors.InvalidRequest)
    await anna.call("QuarantineAdapterVersion", pb.QuarantineAdapterVersionRequest(name=name, reason="bad"))
    refused = await anna.error("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=name))
    assert isinstance(refused, errors.AdapterQuarantined)


async def test_deprecated(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    one = await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    two = await register(anna, JSON, craft.write_adapter(tmp_path / "b", weights=craft.tensors(seed=5)))
    assert await resolves(with_base, anna) == two.sha256
    request = pb.DeprecateAdapterVersionRequest(name=two.name, reason="too chatty")
    passed = await anna.call("DeprecateAdapterVersion", request)
    assert (passed.state, passed.state_reason) == (pb.ADAPTER_VERSION_STATE_DEPRECATED, "too chatty")
    assert await resolves(with_base, anna) == one.sha256
    assert await resolves(with_base, anna, two.name) == two.sha256
    again = await anna.call("DeprecateAdapterVersion", replace_reason(request, "other"))
    assert again.state_reason == "too chatty"
    await anna.call("QuarantineAdapterVersion", pb.QuarantineAdapterVersionRequest(name=two.name, reason="bad"))
    assert isinstance(await anna.error("DeprecateAdapterVersion", request), errors.FailedPrecondition)


def replace_reason(request: pb.DeprecateAdapterVersionRequest, reason: str) -> pb.DeprecateAdapterVersionRequest:
    return pb.DeprecateAdapterVersionRequest(name=request.name, reason=reason)


FOR_OWNERS: dict[str, Callable[[str], Any]] = {
    "UpdateAdapter": lambda name: pb.UpdateAdapterRequest(
        adapter=pb.Adapter(name=name), update_mask=FieldMask(paths=["display_name"])
    ),
    "DeleteAdapter": lambda name: pb.DeleteAdapterRequest(name=name),
    "UndeleteAdapter": lambda name: pb.UndeleteAdapterRequest(name=name),
    "PurgeAdapter": lambda name: pb.PurgeAdapterRequest(name=name),
    "DeprecateAdapterVersion": lambda name: pb.DeprecateAdapterVersionRequest(name=f"{name}/versions/1"),
    "PreloadAdapterVersion": lambda name: pb.PreloadAdapterVersionRequest(name=f"{name}/versions/1"),
    "EvictAdapterVersion": lambda name: pb.EvictAdapterVersionRequest(name=f"{name}/versions/1"),
    "GetResidency": lambda name: pb.GetResidencyRequest(name=f"{name}/versions/1"),
}


async def test_strangers_and_members(with_base: Platform, anna: Client, tmp_path: Path) -> None:
    await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    await anna.call("DeleteAdapter", pb.DeleteAdapterRequest(name=JSON))
    stranger, member = await with_base.tenant("bert"), await with_base.tenant("anna", role=3)
    for method, request in FOR_OWNERS.items():
        theirs = await stranger.error(method, request(JSON))
        nobodys = await stranger.error(method, request("tenants/anna/adapters/other"))
        assert isinstance(theirs, errors.ResourceNotFound), method
        assert str(theirs) == str(nobodys), method
        assert isinstance(await member.error(method, request(JSON)), errors.RoleTooLow), method
