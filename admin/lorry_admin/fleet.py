"""FleetService: gateways and engines as they were seen last."""

from __future__ import annotations

from typing import Any

import grpc.aio

from lorry.api.v1 import fleet_pb2 as pb
from lorry.api.v1 import fleet_pb2_grpc as pb_grpc
from lorry.registry import PageRequest
from lorry.registry.db.tables import ReplicaState
from lorry.registry.fleet.service import FleetService, ReplicaKind
from lorry.registry.names import parse_replica
from lorry_admin.access import Access
from lorry_admin.messages import timestamp

Context = grpc.aio.ServicerContext[Any, Any]
_KINDS = {ReplicaKind.GATEWAY: pb.REPLICA_KIND_GATEWAY, ReplicaKind.ENGINE: pb.REPLICA_KIND_ENGINE}


class FleetAdmin(pb_grpc.FleetServiceServicer):
    """Errors go through as LorryError: the server needs ``lorry.api.status.ErrorInterceptor``."""

    def __init__(self, access: Access, fleet: FleetService) -> None:
        self._access = access
        self._fleet = fleet

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


__all__ = ["FleetAdmin"]
