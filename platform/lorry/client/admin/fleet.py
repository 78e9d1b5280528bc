"""Replicas and rollouts, prepared. ``name`` is `replicas/{r}`."""

from __future__ import annotations

from lorry.api.v1 import fleet_pb2 as pb
from lorry.client.prepared import FLEET, PAGE_SIZE, Paged, Unary


def list_replicas() -> Paged[pb.Replica]:
    """Gateways and engines that were seen within the last hour."""
    request = pb.ListReplicasRequest(page_size=PAGE_SIZE)
    return FLEET.paged("ListReplicas", request, pb.ListReplicasResponse, lambda page: page.replicas)


def get_replica(name: str) -> Unary[pb.Replica]:
    """One of them."""
    return FLEET.unary("GetReplica", pb.GetReplicaRequest(name=name), pb.Replica)


def drain_replica(name: str) -> Unary[pb.Replica]:
    """Has a gateway refuse new generations while those that run end."""
    return FLEET.unary("DrainReplica", pb.DrainReplicaRequest(name=name), pb.Replica)


def undrain_replica(name: str) -> Unary[pb.Replica]:
    """Takes a drain back."""
    return FLEET.unary("UndrainReplica", pb.UndrainReplicaRequest(name=name), pb.Replica)


def list_engine_memory() -> Unary[pb.ListEngineMemoryResponse]:
    """What the engines behind the gateway that answers have in memory."""
    return FLEET.unary("ListEngineMemory", pb.ListEngineMemoryRequest(), pb.ListEngineMemoryResponse)


def list_waiting_requests(page_size: int = 0) -> Unary[pb.ListWaitingRequestsResponse]:
    """What waits in that gateway and in its engines, and why: the first so many (0: 100), and sums of all."""
    request = pb.ListWaitingRequestsRequest(page_size=page_size)
    return FLEET.unary("ListWaitingRequests", request, pb.ListWaitingRequestsResponse)


def list_rollouts(adapter: str, *, alias: str = "") -> Paged[pb.Rollout]:
    """Canaries of an adapter's aliases, newest first; ``alias`` (the part after ``@``): of that one alone."""
    request = pb.ListRolloutsRequest(parent=adapter, alias_id=alias, page_size=PAGE_SIZE)
    return FLEET.paged("ListRollouts", request, pb.ListRolloutsResponse, lambda page: page.rollouts)


__all__ = [
    "drain_replica",
    "get_replica",
    "list_engine_memory",
    "list_replicas",
    "list_rollouts",
    "list_waiting_requests",
    "undrain_replica",
]
