"""Gateways and engines as they were seen, and an operator's drain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lorry import errors
from lorry.api.v1 import fleet_pb2 as pb
from lorry.cli.upkeep import replica_name
from lorry.registry.fleet import repository
from lorry.registry.fleet.service import FORGOTTEN, VISIBLE, Doing, FleetService, ReplicaKind, Sighting
from lorry.registry.names import parse_replica
from tests.integration.admin.conftest import Platform

GATEWAY = Sighting("gateway-a-1", ReplicaKind.GATEWAY, Doing.SERVING, "127.0.0.1:1", "lorry 1", epoch=7, running=3)
ENGINE = Sighting("engine-0", ReplicaKind.ENGINE, Doing.SERVING, build="lorry 1, cpu", base_sha256="b" * 64, running=2)


async def test_replicas_are_listed_as_they_were_seen(platform: Platform) -> None:
    fleet = platform.registry.fleet
    assert not await fleet.report(GATEWAY)
    assert not await fleet.report(ENGINE)
    engine, gateway = (await platform.admin.call("ListReplicas", pb.ListReplicasRequest())).replicas
    assert (gateway.name, gateway.kind, gateway.state) == (
        "replicas/gateway-a-1",
        pb.REPLICA_KIND_GATEWAY,
        pb.REPLICA_STATE_SERVING,
    )
    assert (gateway.address, gateway.build, gateway.registry_epoch, gateway.running) == ("127.0.0.1:1", "lorry 1", 7, 3)
    assert (engine.name, engine.kind, engine.base_sha256) == ("replicas/engine-0", pb.REPLICA_KIND_ENGINE, "b" * 64)
    assert abs(gateway.seen_time.ToDatetime(UTC) - datetime.now(UTC)) < timedelta(minutes=1)
    page = await platform.admin.call("ListReplicas", pb.ListReplicasRequest(page_size=1))
    rest = await platform.admin.call("ListReplicas", pb.ListReplicasRequest(page_token=page.next_page_token))
    assert [replica.name for replica in (*page.replicas, *rest.replicas)] == [engine.name, gateway.name]


async def test_a_drain_is_told_to_the_gateway_and_taken_back(platform: Platform) -> None:
    fleet = platform.registry.fleet
    await fleet.report(GATEWAY)
    await fleet.report(ENGINE)
    await platform.admin.call("DrainReplica", pb.DrainReplicaRequest(name="replicas/gateway-a-1"))
    assert await fleet.report(GATEWAY)
    await platform.admin.call("UndrainReplica", pb.UndrainReplicaRequest(name="replicas/gateway-a-1"))
    assert not await fleet.report(GATEWAY)
    refused = await platform.admin.error("DrainReplica", pb.DrainReplicaRequest(name="replicas/engine-0"))
    assert isinstance(refused, errors.FailedPrecondition)
    for name, error in (("replicas/other", errors.ResourceNotFound), ("replicas/../x", errors.InvalidRequest)):
        assert isinstance(await platform.admin.error("DrainReplica", pb.DrainReplicaRequest(name=name)), error)


async def test_what_is_not_seen_any_more_is_forgotten(platform: Platform) -> None:
    now = [datetime.now(UTC)]
    fleet = FleetService(platform.registry.database, lambda: now[0])
    await fleet.report(GATEWAY)
    now[0] -= VISIBLE + timedelta(minutes=1)
    await fleet.report(ENGINE)
    listed = await platform.admin.call("ListReplicas", pb.ListReplicasRequest())
    assert [replica.name for replica in listed.replicas] == ["replicas/gateway-a-1"]
    unseen = await platform.admin.error("GetReplica", pb.GetReplicaRequest(name="replicas/engine-0"))
    assert isinstance(unseen, errors.ResourceNotFound)
    now[0] += FORGOTTEN + VISIBLE + timedelta(hours=2)
    await fleet.report(Sighting("gateway-b-1", ReplicaKind.GATEWAY, Doing.SERVING))
    async with platform.registry.database.read() as session:
        assert await repository.find(session, "engine-0") is None


@pytest.mark.parametrize("host", ["box", "Web-1.example.com", "", "---", "a" * 90, "10.0.0.7", "host_name"])
def test_a_process_has_a_name_of_the_registrys_grammar(host: str) -> None:
    assert parse_replica("name", f"replicas/{replica_name('gateway', host, 50061)}")
