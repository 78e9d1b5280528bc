"""FleetService: gateways and engines as they were seen last, and what rolls out."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lorry.api.v1 import fleet_pb2 as pb
from lorry.api.v1 import fleet_pb2_grpc as pb_grpc
from lorry.registry import PageRequest
from lorry.registry.aliases.repository import SeenRollout
from lorry.registry.aliases.service import AliasService
from lorry.registry.db.tables import ReplicaState
from lorry.registry.fleet.desk import Desk
from lorry.registry.fleet.naming import LiveNames
from lorry.registry.fleet.service import FleetService, ReplicaKind
from lorry.registry.names import AdapterName, parse_adapter, parse_replica
from lorry.registry.rights import require
from lorry_admin import live
from lorry_admin.access import Access
from lorry_admin.engines import EngineReplicas
from lorry_admin.messages import timestamp

Context = grpc.aio.ServicerContext[Any, Any]
_KINDS = {ReplicaKind.GATEWAY: pb.REPLICA_KIND_GATEWAY, ReplicaKind.ENGINE: pb.REPLICA_KIND_ENGINE}


class FleetAdmin(pb_grpc.FleetServiceServicer):
    """Errors go through as LorryError: the server needs ``lorry.api.status.ErrorInterceptor``."""

    def __init__(
        self,
        access: Access,
        fleet: FleetService,
        aliases: AliasService,
        names: LiveNames,
        engines: EngineReplicas,
        desk: Desk,
    ) -> None:
        self._access = access
        self._fleet = fleet
        self._aliases = aliases
        self._names = names
        self._engines = engines
        self._desk = desk

    async def ListReplicas(self, request: pb.ListReplicasRequest, context: Context) -> pb.ListReplicasResponse:
        caller = await self._access.caller(context)
        page = await self._fleet.list(caller, PageRequest.of(request.page_size, request.page_token))
        return pb.ListReplicasResponse(replicas=[_replica(row) for row in page.rows], next_page_token=page.next_token)

    async def GetReplica(self, request: pb.GetReplicaRequest, context: Context) -> pb.Replica:
        caller = await self._access.caller(context)
        return _replica(await self._fleet.get(caller, parse_replica("name", request.name)))

    async def DrainReplica(self, request: pb.DrainReplicaRequest, context: Context) -> pb.Replica:
        caller = await self._access.caller(context)
        return _replica(await self._fleet.drain(caller, parse_replica("name", request.name), True))

    async def UndrainReplica(self, request: pb.UndrainReplicaRequest, context: Context) -> pb.Replica:
        caller = await self._access.caller(context)
        return _replica(await self._fleet.drain(caller, parse_replica("name", request.name), False))

    async def ListEngineMemory(
        self, request: pb.ListEngineMemoryRequest, context: Context
    ) -> pb.ListEngineMemoryResponse:
        require(await self._access.caller(context), "list engine memory")
        told = await self._engines.memory()
        keys = {key for one in told if one.found is not None for key in live.keys_of(one.found)}
        names = await self._names.versions(keys)
        return pb.ListEngineMemoryResponse(engines=[live.engine_memory(one, names) for one in told])

    async def ListWaitingRequests(
        self, request: pb.ListWaitingRequestsRequest, context: Context
    ) -> pb.ListWaitingRequestsResponse:
        require(await self._access.caller(context), "list waiting requests")
        size = PageRequest.of(request.page_size, "").size
        told = await self._engines.queues()
        held, called = self._desk.held(), self._desk.called()
        views = [one.found for one in told if one.found is not None]
        tenants = {tenant for view in views for tenant, _ in view.counts} | {one.tenant for one in held}
        keys = {one.adapter for view in views for one in view.waiting if one.adapter is not None}
        names = await self._names.versions(keys)
        return live.waiting_requests(told, held, called, names, await self._names.tenants(tenants), size)

    async def ListRollouts(self, request: pb.ListRolloutsRequest, context: Context) -> pb.ListRolloutsResponse:
        caller = await self._access.caller(context)
        parent = parse_adapter("parent", request.parent)
        name = AdapterName(parent.tenant, parent.adapter, alias=request.alias_id)
        page = await self._aliases.rollouts(caller, name, PageRequest.of(request.page_size, request.page_token))
        rows = [_rollout(parent, seen) for seen in page.rows]
        return pb.ListRolloutsResponse(rollouts=rows, next_page_token=page.next_token)


def _replica(row: ReplicaState) -> pb.Replica:
    return pb.Replica(
        name=f"replicas/{row.name}",
        kind=_KINDS[ReplicaKind(row.kind)],
        state=pb.ReplicaState.Value(f"REPLICA_STATE_{row.state}"),
        address=row.address,
        build=row.build,
        base_sha256=row.base_sha256,
        registry_epoch=row.registry_epoch,
        running=row.running,
        seen_time=timestamp(row.seen_at),
    )


def _rollout(parent: AdapterName, seen: SeenRollout) -> pb.Rollout:
    row = seen.row
    return pb.Rollout(
        name=f"{parent.bare}/rollouts/{row.id}",
        alias=f"{parent.bare}@{row.name}",
        version=row.number,
        canary_version=row.canary_number,
        canary_permille=seen.permille,
        state=pb.RolloutState.Value(f"ROLLOUT_STATE_{row.state}"),
        begin_time=timestamp(row.started_at),
        end_time=timestamp(row.ended_at),
        actor=row.created_by,
    )


__all__ = ["FleetAdmin"]
