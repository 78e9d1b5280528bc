"""Adapters, prepared. ``name`` is `tenants/{t}/adapters/{a}`; an ``etag`` that is not the current one is StaleEtag."""

from __future__ import annotations

from google.protobuf.field_mask_pb2 import FieldMask

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin.names import new_request_id, tenant_name
from lorry.client.prepared import ADAPTERS, PAGE_SIZE, Paged, Unary


def create_adapter(tenant: str, adapter: str, display_name: str = "") -> Unary[pb.Adapter]:
    """A name for versions to come. Raises AlreadyExists where it is taken."""
    request = pb.CreateAdapterRequest(
        parent=tenant_name(tenant), adapter_id=adapter, display_name=display_name, request_id=new_request_id()
    )
    return ADAPTERS.unary("CreateAdapter", request, pb.Adapter)


def get_adapter(name: str, *, full: bool = False) -> Unary[pb.Adapter]:
    """One adapter; ``full``: with its newest version, aliases and last use."""
    return ADAPTERS.unary("GetAdapter", pb.GetAdapterRequest(name=name, view=_view(full)), pb.Adapter)


def list_adapters(tenant: str, *, show_deleted: bool = False, full: bool = False) -> Paged[pb.Adapter]:
    """A tenant's adapters, by name; ``full``: each with its newest version, aliases and last use."""
    request = pb.ListAdaptersRequest(
        parent=tenant_name(tenant), page_size=PAGE_SIZE, show_deleted=show_deleted, view=_view(full)
    )
    return ADAPTERS.paged("ListAdapters", request, pb.ListAdaptersResponse, lambda page: page.adapters)


def update_adapter(name: str, *, display_name: str, etag: str = "") -> Unary[pb.Adapter]:
    """Changes what people read."""
    request = pb.UpdateAdapterRequest(
        adapter=pb.Adapter(name=name, display_name=display_name, etag=etag),
        update_mask=FieldMask(paths=["display_name"]),
    )
    return ADAPTERS.unary("UpdateAdapter", request, pb.Adapter, repeatable=not etag)


def delete_adapter(name: str, *, etag: str = "") -> Unary[pb.Adapter]:
    """Ends it for everybody; until its purge_time it can be undeleted."""
    request = pb.DeleteAdapterRequest(name=name, etag=etag)
    return ADAPTERS.unary("DeleteAdapter", request, pb.Adapter, repeatable=not etag)


def undelete_adapter(name: str, *, etag: str = "") -> Unary[pb.Adapter]:
    """Takes a deletion back. Raises FailedPrecondition once it was purged."""
    request = pb.UndeleteAdapterRequest(name=name, etag=etag)
    return ADAPTERS.unary("UndeleteAdapter", request, pb.Adapter, repeatable=False)


def purge_adapter(name: str, *, etag: str = "") -> Unary[pb.PurgeReceipt]:
    """Destroys the bytes of a deleted adapter wherever they are. There is no way back."""
    request = pb.PurgeAdapterRequest(name=name, etag=etag)
    return ADAPTERS.unary("PurgeAdapter", request, pb.PurgeReceipt, repeatable=not etag, slow=True)


def _view(full: bool) -> pb.AdapterView.ValueType:
    return pb.ADAPTER_VIEW_FULL if full else pb.ADAPTER_VIEW_UNSPECIFIED


__all__ = [
    "create_adapter",
    "delete_adapter",
    "get_adapter",
    "list_adapters",
    "purge_adapter",
    "undelete_adapter",
    "update_adapter",
]
