"""Adapters' versions, prepared. ``name`` is `tenants/{t}/adapters/{a}/versions/{n}`."""

from __future__ import annotations

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.client.admin.names import duration, new_request_id, tenant_name
from lorry.client.prepared import ADAPTERS, PAGE_SIZE, Paged, Streamed, Unary
from lorry.errors import InvalidRequest


def create_version(
    adapter: str,
    base: str,
    *,
    upload: str = "",
    s3_uri: str = "",
    expected_sha256: str = "",
    validate_only: bool = False,
) -> Unary[pb.AdapterVersion]:
    """Makes a version of an upload or of a folder in a bucket: exactly one of ``upload`` and ``s3_uri``. ``base`` is
    `models/{base}`. Raises AdapterRefused with the report's violations."""
    if bool(upload) == bool(s3_uri):
        raise InvalidRequest.field("upload", "give exactly one of upload and s3_uri")
    request = pb.CreateAdapterVersionRequest(
        parent=adapter,
        base=base,
        expected_sha256=expected_sha256,
        validate_only=validate_only,
        request_id=new_request_id(),
    )
    if upload:
        request.upload = upload
    else:
        request.s3_uri = s3_uri
    return ADAPTERS.unary("CreateAdapterVersion", request, pb.AdapterVersion, slow=True)


def watch(name: str) -> Streamed[pb.WatchAdapterVersionResponse]:
    """The checks of a version, or of the call on an upload (`.../uploads/{id}`), then the version."""
    request = pb.WatchAdapterVersionRequest(name=name)
    return ADAPTERS.streamed("WatchAdapterVersion", request, pb.WatchAdapterVersionResponse, lambda message: message)


def get_version(name: str) -> Unary[pb.AdapterVersion]:
    """One version, whatever its state, with its files and its report."""
    return ADAPTERS.unary("GetAdapterVersion", pb.GetAdapterVersionRequest(name=name), pb.AdapterVersion)


def list_versions(adapter: str) -> Paged[pb.AdapterVersion]:
    """An adapter's versions, newest first, without files and checks."""
    request = pb.ListAdapterVersionsRequest(parent=adapter, page_size=PAGE_SIZE)
    return ADAPTERS.paged("ListAdapterVersions", request, pb.ListAdapterVersionsResponse, lambda page: page.versions)


def quarantine_version(name: str, reason: str) -> Unary[pb.AdapterVersion]:
    """Nothing is answered by it any more. There is no way back."""
    request = pb.QuarantineAdapterVersionRequest(name=name, reason=reason)
    return ADAPTERS.unary("QuarantineAdapterVersion", request, pb.AdapterVersion)


def deprecate_version(name: str, reason: str) -> Unary[pb.AdapterVersion]:
    """Only who names it gets it: the bare name passes it over."""
    request = pb.DeprecateAdapterVersionRequest(name=name, reason=reason)
    return ADAPTERS.unary("DeprecateAdapterVersion", request, pb.AdapterVersion, repeatable=False)


def preload_version(name: str, *, wait_s: float | None = None) -> Unary[pb.Residency]:
    """Brings it into an engine's memory. ``wait_s`` None is the server's default."""
    request = pb.PreloadAdapterVersionRequest(name=name, wait=None if wait_s is None else duration(wait_s))
    return ADAPTERS.unary("PreloadAdapterVersion", request, pb.Residency, slow=True)


def evict_version(name: str) -> Unary[pb.Residency]:
    """Takes an idle version out of device memory."""
    return ADAPTERS.unary("EvictAdapterVersion", pb.EvictAdapterVersionRequest(name=name), pb.Residency)


def get_residency(name: str) -> Unary[pb.Residency]:
    """Where its bytes are now."""
    return ADAPTERS.unary("GetResidency", pb.GetResidencyRequest(name=name), pb.Residency)


def list_residency(tenant: str) -> Paged[pb.Residency]:
    """Of a tenant's own adapters, the versions that some engine has."""
    request = pb.ListResidencyRequest(parent=tenant_name(tenant), page_size=PAGE_SIZE)
    return ADAPTERS.paged("ListResidency", request, pb.ListResidencyResponse, lambda page: page.residencies)


__all__ = [
    "create_version",
    "deprecate_version",
    "evict_version",
    "get_residency",
    "get_version",
    "list_residency",
    "list_versions",
    "preload_version",
    "quarantine_version",
    "watch",
]
