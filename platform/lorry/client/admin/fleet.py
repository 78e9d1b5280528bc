"""Replicas, prepared. ``name`` is `replicas/{r}`."""

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


__all__ = ["drain_replica", "get_replica", "list_replicas", "undrain_replica"]
