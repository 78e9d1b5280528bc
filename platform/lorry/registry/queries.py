"""What ``loading`` reads, as plain columns. Made once, since to write such a statement takes longer than to run it."""

from __future__ import annotations

from sqlalchemy import select

from lorry.registry.db.tables import (
    Adapter,
    AdapterFileRow,
    AdapterVersion,
    Alias,
    AliasRevision,
    ApiKey,
    BaseModel,
    Grant,
    Login,
    Pin,
    Principal,
    Quota,
    Tenant,
    WebSession,
)

TENANTS = select(Tenant.id, Tenant.name, Tenant.suspended)

KEYS = select(
    ApiKey.id,
    ApiKey.tenant_id,
    Principal.name,
    Principal.role,
    ApiKey.mac,
    ApiKey.pepper_id,
    ApiKey.expires_at,
    ApiKey.revoked_at,
).join(Principal, Principal.id == ApiKey.principal_id)

LOGINS = select(Login.id, Principal.role, Login.disabled, Login.changed_at).join(
    Principal, Principal.id == Login.principal_id
)

SESSIONS = select(WebSession.id, WebSession.ended_at).where(WebSession.ended_at.is_not(None))

BASES = select(BaseModel.id, BaseModel)

ADAPTERS = select(
    Adapter.id, Adapter.tenant_id, Tenant.name.label("tenant_name"), Adapter.name, Adapter.deleted_at
).join(Tenant, Tenant.id == Adapter.tenant_id)

VERSIONS = (
    select(
        AdapterVersion.id,
        AdapterVersion.adapter_id,
        AdapterVersion.number,
        AdapterVersion.base_model_id,
        AdapterVersion.sha256,
        AdapterVersion.prefix,
        AdapterVersion.state,
        AdapterVersion.vocabulary,
        AdapterVersion.tokenizer_sha256,
        AdapterVersion.tokenizer_vocabulary,
        AdapterVersion.end_ids,
        AdapterVersion.deprecated_at,
        AdapterVersion.created_at,
        AdapterFileRow.path,
        AdapterFileRow.size_bytes,
        AdapterFileRow.sha256.label("file_sha256"),
    )
    .outerjoin(AdapterFileRow, AdapterFileRow.version_id == AdapterVersion.id)
    .order_by(AdapterVersion.id, AdapterFileRow.path)
)
"""A row for each file, one without a file for a version that has none; a version's rows are together."""

ALIASES = (
    select(
        Alias.adapter_id,
        Alias.name,
        AliasRevision.number,
        AliasRevision.canary_number,
        AliasRevision.canary_permille,
    )
    .join(AliasRevision, (AliasRevision.adapter_id == Alias.adapter_id) & (AliasRevision.name == Alias.name))
    .where(AliasRevision.revision == Alias.revision, AliasRevision.deleted.is_(False))
)

GRANTS = select(Grant.id, Grant.tenant_id, Grant.adapter_id, Grant.base_model_id, Grant.revoked_at)

PINS = select(Pin.tenant_id, Pin.adapter_id, Pin.number, Pin.mode)

QUOTAS = select(
    Quota.id,
    Quota.tenant_id,
    Quota.adapter_id,
    Quota.requests_per_minute,
    Quota.concurrency,
    Quota.queue_length,
    Quota.tokens_per_month,
    Quota.max_tokens_cap,
    Quota.revision,
)

__all__ = [
    "ADAPTERS",
    "ALIASES",
    "BASES",
    "GRANTS",
    "KEYS",
    "LOGINS",
    "PINS",
    "QUOTAS",
    "SESSIONS",
    "TENANTS",
    "VERSIONS",
]
