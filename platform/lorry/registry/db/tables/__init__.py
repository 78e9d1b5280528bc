"""Every table of the registry.

| kind | tables | may change |
|---|---|---|
| identity | tenant, principal, api_key | suspended, import_prefixes, weight; role; expires_at, revoked_at |
| accounts | login, web_session, login_throttle | a login's password, disabled; a session's end; a throttle anything |
| weights | base_model, adapter, adapter_version, adapter_file | an adapter's deletion; a version's state alone |
| names | alias, alias_revision, rollout | alias.revision; a rollout's end; revisions are immutable |
| rights | grant, pin | grant.revoked_at; a pin is replaced or deleted |
| limits | quota, quota_period, quota_lease | limits; sums of leases that ended; leases |
| prices | price | what a day's price is |
| logs | change_log, usage_event, audit_event, idempotency | nothing |
| sums | usage_rollup, key_use, audit_head | derived from the logs, in the transaction that appends to them |
| counts | outcome_rollup | a gateway's count grows; of what is in no log, so a crash loses some |
| observations | replica_state, residency | anything; never authority |
| counter | registry_epoch | one row; its lock orders the change log |
"""

from __future__ import annotations

from lorry.registry.db.tables.accounts import Login, LoginThrottle, WebSession
from lorry.registry.db.tables.fleet import ReplicaState, Residency
from lorry.registry.db.tables.identity import ApiKey, KeyUse, Principal, Tenant
from lorry.registry.db.tables.limits import Quota, QuotaLease, QuotaPeriod
from lorry.registry.db.tables.logs import (
    AuditEvent,
    AuditHead,
    ChangeLog,
    Idempotency,
    OutcomeRollup,
    RegistryEpoch,
    UsageEvent,
    UsageRollup,
)
from lorry.registry.db.tables.names import Alias, AliasRevision, Rollout
from lorry.registry.db.tables.prices import Price
from lorry.registry.db.tables.rights import Grant, Pin
from lorry.registry.db.tables.weights import Adapter, AdapterFileRow, AdapterVersion, BaseModel

__all__ = [
    "Adapter",
    "AdapterFileRow",
    "AdapterVersion",
    "Alias",
    "AliasRevision",
    "ApiKey",
    "AuditEvent",
    "AuditHead",
    "BaseModel",
    "ChangeLog",
    "Grant",
    "Idempotency",
    "KeyUse",
    "Login",
    "LoginThrottle",
    "OutcomeRollup",
    "Pin",
    "Price",
    "Principal",
    "Quota",
    "QuotaLease",
    "QuotaPeriod",
    "RegistryEpoch",
    "ReplicaState",
    "Residency",
    "Rollout",
    "Tenant",
    "UsageEvent",
    "UsageRollup",
    "WebSession",
]
