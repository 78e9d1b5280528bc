"""Replicas and base models, for the platform's administrators."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.responses import Response

from lorry.api.v1 import fleet_pb2 as pb
from lorry.client.admin.bases import create_base, get_base, list_bases
from lorry.client.admin.fleet import drain_replica, list_replicas, undrain_replica
from lorry_admin.web.visits import Posted, Visiting

router = APIRouter()
SILENT_S = 15.0
"""Replicas report every two seconds."""


@router.get("/operator/replicas")
async def replicas(visit: Visiting) -> Response:
    listed = await visit.listed(list_replicas())
    return visit.page("replicas.html", listed=listed, kind=_kind, state=partial(_state, now=visit.site.now()))


@router.post("/operator/replicas/{replica}/drain")
async def drain(post: Posted, replica: str) -> Response:
    await post.visit.ask(drain_replica(f"replicas/{replica}"))
    return post.visit.go("/operator/replicas", "replica-drained")


@router.post("/operator/replicas/{replica}/undrain")
async def undrain(post: Posted, replica: str) -> Response:
    await post.visit.ask(undrain_replica(f"replicas/{replica}"))
    return post.visit.go("/operator/replicas", "replica-undrained")


@router.get("/operator/bases")
async def bases(visit: Visiting) -> Response:
    return visit.page("bases.html", listed=await visit.listed(list_bases()))


@router.get("/operator/bases/{base_name}")
async def base(visit: Visiting, base_name: str) -> Response:
    return visit.page("base_model.html", found=await visit.ask(get_base(f"models/{base_name}")))


@router.post("/operator/bases")
async def create(post: Posted) -> Response:
    form = post.form
    made = await post.visit.ask(
        create_base(
            form.text("name"),
            form.text("base_sha256"),
            form.text("tokenizer_sha256"),
            form.optional_whole("context_tokens") or 0,
            form.text("config_json"),
        )
    )
    return post.visit.go(f"/operator/bases/{made.name.removeprefix('models/')}", "base-created")


def _kind(replica: pb.Replica) -> str:
    return pb.ReplicaKind.Name(replica.kind).removeprefix("REPLICA_KIND_").lower()


def _state(replica: pb.Replica, now: float) -> str:
    """A process that was killed says nothing of it: what it said last is no news then."""
    if now - replica.seen_time.seconds > SILENT_S:
        return "silent"
    return pb.ReplicaState.Name(replica.state).removeprefix("REPLICA_STATE_").lower()


__all__ = ["SILENT_S", "base", "bases", "create", "drain", "replicas", "router", "undrain"]
