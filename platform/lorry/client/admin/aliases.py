"""Aliases, prepared. ``name`` is `tenants/{t}/adapters/{a}@{alias}`; an ``etag`` that is not the current one is
StaleEtag, ``new`` for one that must not be there."""

from __future__ import annotations

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin.names import new_request_id
from lorry.client.prepared import ADAPTERS, PAGE_SIZE, Paged, Unary


def set_alias(adapter: str, alias: str, version: int, *, etag: str = "") -> Unary[pb.Alias]:
    """Points an alias at one version, creating it where it is new. A canary that ran is over."""
    request = pb.SetAliasRequest(
        parent=adapter, alias_id=alias, version=version, etag=etag, request_id=new_request_id()
    )
    return ADAPTERS.unary("SetAlias", request, pb.Alias)


def get_alias(name: str) -> Unary[pb.Alias]:
    """One alias."""
    return ADAPTERS.unary("GetAlias", pb.GetAliasRequest(name=name), pb.Alias)


def list_aliases(adapter: str) -> Paged[pb.Alias]:
    """An adapter's aliases, by name."""
    request = pb.ListAliasesRequest(parent=adapter, page_size=PAGE_SIZE)
    return ADAPTERS.paged("ListAliases", request, pb.ListAliasesResponse, lambda page: page.aliases)


def list_alias_revisions(name: str) -> Paged[pb.Alias]:
    """What it pointed at, newest first."""
    request = pb.ListAliasRevisionsRequest(name=name, page_size=PAGE_SIZE)
    return ADAPTERS.paged("ListAliasRevisions", request, pb.ListAliasRevisionsResponse, lambda page: page.revisions)


def set_canary(name: str, version: int, permille: int, *, etag: str = "") -> Unary[pb.Alias]:
    """Gives ``permille`` thousandths (1 to 999) of the alias's requests to another version."""
    request = pb.SetCanaryRequest(name=name, version=version, permille=permille, etag=etag, request_id=new_request_id())
    return ADAPTERS.unary("SetCanary", request, pb.Alias)


def promote_canary(name: str, *, etag: str = "") -> Unary[pb.Alias]:
    """Makes the canary what the alias points at."""
    request = pb.PromoteCanaryRequest(name=name, etag=etag, request_id=new_request_id())
    return ADAPTERS.unary("PromoteCanary", request, pb.Alias)


def rollback_alias(name: str, *, etag: str = "") -> Unary[pb.Alias]:
    """One step back: ends a canary, or points the alias at what it pointed at before."""
    request = pb.RollbackAliasRequest(name=name, etag=etag, request_id=new_request_id())
    return ADAPTERS.unary("RollbackAlias", request, pb.Alias)


def delete_alias(name: str, *, etag: str = "") -> Unary[pb.Alias]:
    """Takes it away."""
    request = pb.DeleteAliasRequest(name=name, etag=etag, request_id=new_request_id())
    return ADAPTERS.unary("DeleteAlias", request, pb.Alias)


__all__ = [
    "delete_alias",
    "get_alias",
    "list_alias_revisions",
    "list_aliases",
    "promote_canary",
    "rollback_alias",
    "set_alias",
    "set_canary",
]
