"""Rows of the registry to messages of the admin API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from lorry.api.v1 import adapter_admin_pb2 as adapter_pb
from lorry.api.v1 import tenant_admin_pb2 as tenant_pb
from lorry.engine.contract import Whereabouts
from lorry.errors import InvalidRequest
from lorry.registry import Role
from lorry.registry.adapters.candidates import Candidate
from lorry.registry.adapters.service import adapter_etag
from lorry.registry.adapters.uploads import UploadLimits, UploadState
from lorry.registry.aliases.service import alias_etag
from lorry.registry.db import tables
from lorry.registry.entries import VersionState
from lorry.registry.fleet.observed import Seen
from lorry.registry.grants.service import PinMode
from lorry.registry.names import AdapterName
from lorry.registry.tenants.service import tenant_etag

_ROLES: dict[str, tenant_pb.Role.ValueType] = {
    Role.PLATFORM_ADMIN: tenant_pb.ROLE_PLATFORM_ADMIN,
    Role.OWNER: tenant_pb.ROLE_OWNER,
    Role.OPERATOR: tenant_pb.ROLE_OPERATOR,
    Role.MEMBER: tenant_pb.ROLE_MEMBER,
    Role.VIEWER: tenant_pb.ROLE_VIEWER,
}

_PIN_MODES: dict[str, tenant_pb.PinMode.ValueType] = {
    PinMode.HARD: tenant_pb.PIN_MODE_HARD,
    PinMode.DEFAULT: tenant_pb.PIN_MODE_DEFAULT,
}


def timestamp(value: datetime | None) -> Timestamp | None:
    if value is None:
        return None
    found = Timestamp()
    found.FromDatetime(value)
    return found


def seconds(value: float | None) -> Timestamp | None:
    """Of Unix seconds."""
    return None if value is None else timestamp(datetime.fromtimestamp(value, UTC))


def role(name: str) -> tenant_pb.Role.ValueType:
    return _ROLES[name]


def role_name(value: int) -> str:
    """The registry's word for a role of the API; "" for one that is none."""
    return next((name for name, number in _ROLES.items() if number == value), "")


def pin_mode(value: int) -> PinMode:
    """The registry's word; HARD for none. Raises InvalidRequest for a number that is no mode."""
    if value == tenant_pb.PIN_MODE_UNSPECIFIED:
        return PinMode.HARD
    for name, number in _PIN_MODES.items():
        if number == value:
            return PinMode(name)
    raise InvalidRequest.field("mode", f"{value} is not one; use PIN_MODE_HARD or PIN_MODE_DEFAULT")


def tenant(row: tables.Tenant) -> tenant_pb.Tenant:
    return tenant_pb.Tenant(
        name=f"tenants/{row.name}",
        uid=row.id,
        display_name=row.display_name,
        suspended=row.suspended,
        create_time=timestamp(row.created_at),
        etag=tenant_etag(row),
        import_prefixes=row.import_prefixes or (),
        weight=row.weight,
    )


def api_key(tenant_name: str, row: tables.ApiKey) -> tenant_pb.ApiKey:
    return tenant_pb.ApiKey(
        name=f"tenants/{tenant_name}/apiKeys/{row.id}",
        principal=row.principal.name,
        role=_ROLES[row.principal.role],
        last_four=row.last_four,
        create_time=timestamp(row.created_at),
        expire_time=timestamp(row.expires_at),
        revoke_time=timestamp(row.revoked_at),
        last_use_time=None if row.use is None else timestamp(row.use.used_at),
    )


def base_model(row: tables.BaseModel) -> tenant_pb.BaseModel:
    return tenant_pb.BaseModel(
        name=f"models/{row.name}",
        base_sha256=row.base_sha256,
        tokenizer_sha256=row.tokenizer_sha256,
        context_tokens=row.context_tokens,
        config_json=json.dumps(row.config, sort_keys=True),
        create_time=timestamp(row.created_at),
    )


def grant(tenant_name: str, row: tables.Grant) -> tenant_pb.Grant:
    if row.adapter is not None:
        resource = f"tenants/{row.adapter.tenant.name}/adapters/{row.adapter.name}"
    else:
        assert row.base is not None
        resource = f"models/{row.base.name}"
    return tenant_pb.Grant(
        name=f"tenants/{tenant_name}/grants/{row.id}",
        resource=resource,
        create_time=timestamp(row.created_at),
        revoke_time=timestamp(row.revoked_at),
    )


def pin(tenant_name: str, adapter: AdapterName, row: tables.Pin) -> tenant_pb.Pin:
    return tenant_pb.Pin(
        tenant=f"tenants/{tenant_name}",
        version=f"{adapter.bare}/versions/{row.number}",
        mode=_PIN_MODES[row.mode],
        create_time=timestamp(row.created_at),
    )


def alias(adapter: AdapterName, row: tables.AliasRevision) -> adapter_pb.Alias:
    """As the alias was at that revision; ``adapter`` may be any name of it."""
    return adapter_pb.Alias(
        name=f"{adapter.bare}@{row.name}",
        version=row.number,
        revision=row.revision,
        canary_version=row.canary_number or 0,
        canary_permille=row.canary_permille,
        etag=alias_etag(row),
        update_time=timestamp(row.created_at),
        deleted=row.deleted,
    )


def adapter(tenant_name: str, row: tables.Adapter) -> adapter_pb.Adapter:
    return adapter_pb.Adapter(
        name=f"tenants/{tenant_name}/adapters/{row.name}",
        uid=row.id,
        display_name=row.display_name,
        create_time=timestamp(row.created_at),
        last_version=row.last_version,
        etag=adapter_etag(row),
        delete_time=timestamp(row.deleted_at),
        purge_time=timestamp(row.purge_at),
        purge_receipt=receipt(tenant_name, row) if row.purged_at is not None else None,
    )


def receipt(tenant_name: str, row: tables.Adapter) -> adapter_pb.PurgeReceipt:
    """Of an adapter that is purged."""
    told: dict[str, Any] = row.purge_receipt or {}
    return adapter_pb.PurgeReceipt(
        adapter=f"tenants/{tenant_name}/adapters/{row.name}",
        purge_time=timestamp(row.purged_at),
        versions=[adapter_pb.PurgedVersion(**one) for one in told.get("versions", ())],
        replicas=[adapter_pb.PurgedReplica(replica=name, **one) for name, one in told.get("replicas", {}).items()],
    )


def residency(
    name: AdapterName, found: Sequence[tuple[str, Whereabouts]], seen: Sequence[Seen] = (), *, running: bool
) -> adapter_pb.Residency:
    """``running``: with the number of requests, which are not only those of who asks. ``seen``: on other engines."""
    replicas = [
        adapter_pb.ReplicaResidency(
            replica=replica, device=where.device, host=where.host, disk=where.disk, running=where.live * running
        )
        for replica, where in found
    ]
    return adapter_pb.Residency(name=str(name), replicas=[*replicas, *map(observed, seen)])


def observed(seen: Seen) -> adapter_pb.ReplicaResidency:
    device, host, disk = seen.places
    return adapter_pb.ReplicaResidency(
        replica=seen.replica, device=device, host=host, disk=disk, seen_time=timestamp(seen.at)
    )


def version_state(row: tables.AdapterVersion) -> adapter_pb.AdapterVersionState.ValueType:
    """Of READY versions some are DEPRECATED, and of all those that are not served some are PURGED."""
    if row.purged_at is not None and row.state != VersionState.REJECTED:
        return adapter_pb.ADAPTER_VERSION_STATE_PURGED
    if row.state == VersionState.READY and row.deprecated_at is not None:
        return adapter_pb.ADAPTER_VERSION_STATE_DEPRECATED
    return adapter_pb.AdapterVersionState.Value(f"ADAPTER_VERSION_STATE_{row.state}")


def upload(adapter_name: str, state: UploadState, limits: UploadLimits) -> adapter_pb.Upload:
    expires = Timestamp()
    expires.FromMilliseconds(round(state.expires_at * 1000))
    return adapter_pb.Upload(
        name=f"{adapter_name}/uploads/{state.id}",
        files=[adapter_pb.UploadFile(path=path, received_bytes=size) for path, size in state.files.items()],
        max_chunk_bytes=limits.max_chunk_bytes,
        max_file_bytes=limits.max_file_bytes,
        max_files=limits.max_files,
        expire_time=expires,
    )


def version(adapter_name: str, row: tables.AdapterVersion, *, full: bool) -> adapter_pb.AdapterVersion:
    """``row.base`` must be loaded, and ``row.files`` where ``full``."""
    found = adapter_pb.AdapterVersion(
        name=f"{adapter_name}/versions/{row.number}",
        version=row.number,
        sha256=row.sha256,
        base=f"models/{row.base.name}",
        base_sha256=row.base.base_sha256,
        state=version_state(row),
        state_reason=row.state_reason,
        rank=row.rank,
        size_bytes=row.size_bytes,
        create_time=timestamp(row.created_at),
        tokenizer_sha256=row.tokenizer_sha256 or row.base.tokenizer_sha256,
        vocabulary=row.vocabulary or vocabulary_of(row.base),
        end_token_ids=row.end_ids or (),
        source_uri=row.source_uri or "",
    )
    if full:
        found.files.extend(
            adapter_pb.AdapterVersionFile(path=file.path, size=file.size_bytes, sha256=file.sha256)
            for file in row.files
        )
        found.checks.extend(check(row_of_report) for row_of_report in row.report["checks"])
    return found


def candidate(adapter_name: str, found: Candidate, base: tables.BaseModel) -> adapter_pb.AdapterVersion:
    """What ``validate_only`` answers: the version as it would be, without a number."""
    accepted = found.report.accepted
    text = None if accepted is None else accepted.text
    return adapter_pb.AdapterVersion(
        name=f"{adapter_name}/versions/",
        sha256=found.sha256,
        base=f"models/{base.name}",
        base_sha256=base.base_sha256,
        rank=found.report.rank,
        size_bytes=sum(file.size for file in found.files),
        files=[adapter_pb.AdapterVersionFile(path=f.path, size=f.size, sha256=f.sha256) for f in found.files],
        checks=[check(row) for row in found.report.to_dict()["checks"]],
        tokenizer_sha256=base.tokenizer_sha256 if text is None else text.sha256,
        vocabulary=(None if accepted is None else accepted.vocabulary) or vocabulary_of(base),
        end_token_ids=() if text is None else text.end_ids,
    )


def vocabulary_of(base: tables.BaseModel) -> int:
    """Rows of a base's logits, as its config.json says."""
    return int(base.config.get("vocab_size", 0))


def check(row: dict[str, Any]) -> adapter_pb.ValidationCheck:
    return adapter_pb.ValidationCheck(
        id=row["id"],
        outcome=row["outcome"],
        message=row["message"],
        value="" if row["value"] is None else str(row["value"]),
        limit="" if row["limit"] is None else str(row["limit"]),
    )


__all__ = [
    "adapter",
    "alias",
    "api_key",
    "base_model",
    "candidate",
    "check",
    "grant",
    "observed",
    "pin",
    "pin_mode",
    "receipt",
    "residency",
    "role",
    "role_name",
    "seconds",
    "tenant",
    "timestamp",
    "upload",
    "version",
    "version_state",
    "vocabulary_of",
]
