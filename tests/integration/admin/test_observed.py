"""Engines that only other gateways reach, as the registry was told of them: whose copies, how old, how many, and what
it costs to tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from lorry import errors
from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope
from lorry.registry.fleet import repository
from lorry.registry.fleet.observed import FRESH, VERSIONS_KEPT, Held, Places
from lorry.registry.fleet.service import FORGOTTEN, Doing, FleetService, ReplicaKind, Sighting
from tests.integration.admin.conftest import BASE_SHA256, Client, Platform
from tests.integration.admin.test_lifecycle import COPY, JSON, owner, register
from tests.unit.adapters import craft

TWIN = "tenants/anna/adapters/twin"
OTHER = Sighting("engine-other", ReplicaKind.ENGINE, Doing.SERVING, base_sha256=BASE_SHA256)
DEVICE, HOST = Places(device=True, host=True, disk=True), Places(host=True)


async def key_of(client: Client, version: pb.AdapterVersion) -> AdapterKey:
    adapter = await client.call("GetAdapter", pb.GetAdapterRequest(name=version.name.partition("/versions")[0]))
    return AdapterKey(AdapterDigest(version.sha256), AdapterScope(adapter.uid))


async def told(client: Client, version: str) -> list[tuple[str, bool, bool, bool, bool]]:
    """By GetResidency: name, places, and whether it was seen by another."""
    found = await client.call("GetResidency", pb.GetResidencyRequest(name=version))
    return [(one.replica, one.device, one.host, one.disk, one.HasField("seen_time")) for one in found.replicas]


async def listed(client: Client, tenant: str) -> dict[str, list[str]]:
    """By ListResidency: replicas by version."""
    found = await client.call("ListResidency", pb.ListResidencyRequest(parent=f"tenants/{tenant}"))
    return {one.name: [row.replica for row in one.replicas] for one in found.residencies}


def many(count: int) -> dict[AdapterKey, Places]:
    """The last two on the device."""
    keys = [AdapterKey(AdapterDigest(f"{at:064x}"), AdapterScope("ad_x")) for at in range(count)]
    return {key: DEVICE if at >= count - 2 else HOST for at, key in enumerate(keys)}


async def kept(platform: Platform) -> Mapping[AdapterKey, tuple[bool, bool, bool]]:
    async with platform.registry.database.read() as session:
        return await repository.copies_on(session, OTHER.name)


@contextmanager
def written(platform: Platform) -> Iterator[list[tuple[str, int]]]:
    """Statements that write copies, and how many."""
    found: list[tuple[str, int]] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "residency" in statement and not statement.startswith("SELECT"):
            found.append((statement[:6], cursor.rowcount))

    engine = platform.registry.database.engine.sync_engine
    event.listen(engine, "after_cursor_execute", note)
    yield found
    event.remove(engine, "after_cursor_execute", note)


async def test_equal_bytes_of_others_are_theirs(with_base: Platform, tmp_path: Path) -> None:
    """An engine elsewhere has bert's copy, and then anna's of one of her two adapters with the same bytes."""
    files = craft.write_adapter(tmp_path / "a")
    anna, bert, _ = [await owner(with_base, name) for name in (JSON, COPY, TWIN)]
    one, his, twin = [await register(who, name, files) for who, name in ((anna, JSON), (bert, COPY), (anna, TWIN))]
    newer = await register(anna, JSON, craft.write_adapter(tmp_path / "b", weights=craft.tensors(seed=5)))
    here, there = ("engine-0", False, False, False, False), ("engine-other", True, True, True, True)
    await with_base.registry.fleet.report(OTHER, {await key_of(bert, his): DEVICE})
    assert await listed(anna, "anna") == {}
    assert await told(anna, one.name) == await told(anna, twin.name) == [here]
    assert await listed(bert, "bert") == {his.name: ["engine-other"]}
    assert await told(bert, his.name) == [here, there]
    await with_base.registry.fleet.report(OTHER, {await key_of(bert, his): DEVICE, await key_of(anna, one): DEVICE})
    assert await listed(anna, "anna") == {one.name: ["engine-other"]}
    assert (await told(anna, one.name), await told(anna, twin.name)) == ([here, there], [here])
    assert await told(anna, newer.name) == [here]
    for asked in ("bert", "nobody"):
        assert isinstance(
            await anna.error("ListResidency", pb.ListResidencyRequest(parent=f"tenants/{asked}")),
            errors.ResourceNotFound,
        )
    assert isinstance(await anna.error("GetResidency", pb.GetResidencyRequest(name=his.name)), errors.ResourceNotFound)
    assert await listed(with_base.admin, "bert") == {his.name: ["engine-other"]}
    member = await with_base.tenant("anna", role=3)
    refused = await member.error("ListResidency", pb.ListResidencyRequest(parent="tenants/anna"))
    assert isinstance(refused, errors.RoleTooLow)


async def test_an_engine_of_this_gateway_is_told_once_and_as_it_says_itself(
    with_base: Platform, tmp_path: Path
) -> None:
    anna = await owner(with_base, JSON)
    one = await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    mine = Sighting("engine-0", ReplicaKind.ENGINE, Doing.SERVING, base_sha256=BASE_SHA256)
    await with_base.registry.fleet.report(mine, {await key_of(anna, one): DEVICE})
    assert await told(anna, one.name) == [("engine-0", False, False, False, False)]
    assert await listed(anna, "anna") == {}
    await anna.call("PreloadAdapterVersion", pb.PreloadAdapterVersionRequest(name=one.name))
    assert await told(anna, one.name) == [("engine-0", False, True, True, False)]
    assert await listed(anna, "anna") == {one.name: ["engine-0"]}


@pytest.mark.parametrize("ago", [FRESH - timedelta(seconds=10), FRESH + timedelta(seconds=10)], ids=["fresh", "old"])
async def test_what_was_seen_long_ago_is_not_told(with_base: Platform, tmp_path: Path, ago: timedelta) -> None:
    """The engine itself was seen just now: its copies count from when it told of them."""
    anna = await owner(with_base, JSON)
    one = await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    at = datetime.now(UTC) - ago
    now = [at]
    fleet = FleetService(with_base.registry.database, lambda: now[0])
    await fleet.report(OTHER, {await key_of(anna, one): HOST})
    now[0] = datetime.now(UTC)
    await fleet.report(OTHER)
    found = (await anna.call("GetResidency", pb.GetResidencyRequest(name=one.name))).replicas
    seen = [row.seen_time.ToDatetime(UTC) for row in found if row.HasField("seen_time")]
    assert seen == ([at] if ago < FRESH else [])
    assert len(await listed(anna, "anna")) == len(seen)


async def test_what_an_engine_had_that_is_down_is_not_told(with_base: Platform, tmp_path: Path) -> None:
    anna = await owner(with_base, JSON)
    one = await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    await with_base.registry.fleet.report(OTHER, {await key_of(anna, one): DEVICE})
    assert len(await told(anna, one.name)) == 2
    await with_base.registry.fleet.report(Sighting(OTHER.name, ReplicaKind.ENGINE, Doing.DOWN, base_sha256=BASE_SHA256))
    assert len(await told(anna, one.name)) == 1
    assert await listed(anna, "anna") == {}


async def test_a_base_that_engines_elsewhere_serve(with_base: Platform, tmp_path: Path) -> None:
    """This gateway's engine serves another one."""
    anna = await owner(with_base, JSON)
    one = await register(anna, JSON, craft.write_adapter(tmp_path / "a"))
    info = with_base.engine._info
    object.__setattr__(info, "base", "9" * 64)
    asked = pb.GetResidencyRequest(name=one.name)
    assert isinstance(await anna.error("GetResidency", asked), errors.EngineUnavailable)
    await with_base.registry.fleet.report(OTHER, {})
    assert await told(anna, one.name) == []
    await with_base.registry.fleet.report(OTHER, {await key_of(anna, one): HOST})
    assert await told(anna, one.name) == [("engine-other", False, True, False, True)]


async def test_only_what_changed_is_written(platform: Platform) -> None:
    fleet, before = platform.registry.fleet, many(400)
    await fleet.report(OTHER, before)
    assert await kept(platform) == before
    with written(platform) as found:
        await fleet.report(OTHER, before)
        await fleet.report(OTHER)
        assert found == []
    first, _, *rest = before
    after: Held = {
        first: DEVICE,
        **{key: before[key] for key in rest},
        AdapterKey(first.digest, AdapterScope("ad_y")): HOST,
    }
    with written(platform) as found:
        await fleet.report(OTHER, after)
        assert found == [("DELETE", 2), ("INSERT", 2)]
    assert await kept(platform) == after
    await fleet.report(OTHER, {})
    assert await kept(platform) == {}


async def test_what_is_kept_of_an_engine_is_bounded(platform: Platform) -> None:
    held = many(VERSIONS_KEPT + 200)
    await platform.registry.fleet.report(OTHER, held)
    found = await kept(platform)
    assert len(found) == VERSIONS_KEPT
    assert [key for key, places in held.items() if places == DEVICE and key not in found] == []


async def test_copies_go_with_their_engine(platform: Platform) -> None:
    now = [datetime.now(UTC)]
    fleet = FleetService(platform.registry.database, lambda: now[0])
    await fleet.report(OTHER, many(3))
    now[0] += FORGOTTEN + timedelta(seconds=1)
    await fleet.report(Sighting("engine-new", ReplicaKind.ENGINE, Doing.SERVING), many(1))
    assert await kept(platform) == {}
    async with platform.registry.database.read() as session:
        assert len(await repository.copies_on(session, "engine-new")) == 1
