"""The registry: tenants, keys, bases, adapters, versions, grants, pins; and its snapshot for the hot path."""

from lorry.registry.accounts import Accounts, Login, PasswordParams, SessionView, WebSession
from lorry.registry.adapters.candidates import BaseFacts, Candidate, Validator
from lorry.registry.adapters.uploads import UploadLimits
from lorry.registry.adapters.versions import ObjectSink
from lorry.registry.authz import Caller, Role, VerifiedTenantId, verify_tenant
from lorry.registry.bootstrap import Bootstrap, bootstrap, issue_admin_key
from lorry.registry.entries import BaseModelEntry, VersionState
from lorry.registry.facade import Registry
from lorry.registry.keys import Peppers
from lorry.registry.migrating import alembic_config, migrate, migrate_sync
from lorry.registry.paging import Page, PageRequest
from lorry.registry.prices import DayUse, Price, cost
from lorry.registry.rights import ACTIONS, require
from lorry.registry.secretfiles import SecretError, Secrets, load_secrets
from lorry.registry.snapshot import Resolution, Snapshot
from lorry.registry.source import SnapshotSource
from lorry.registry.usage.service import Usage, UsageLedger, new_ledger_id

__all__ = [
    "ACTIONS",
    "Accounts",
    "BaseFacts",
    "BaseModelEntry",
    "Bootstrap",
    "Caller",
    "Candidate",
    "DayUse",
    "Login",
    "ObjectSink",
    "Page",
    "PageRequest",
    "PasswordParams",
    "Peppers",
    "Price",
    "Registry",
    "Resolution",
    "Role",
    "SecretError",
    "Secrets",
    "SessionView",
    "Snapshot",
    "SnapshotSource",
    "UploadLimits",
    "Usage",
    "UsageLedger",
    "Validator",
    "VerifiedTenantId",
    "VersionState",
    "WebSession",
    "alembic_config",
    "bootstrap",
    "cost",
    "issue_admin_key",
    "load_secrets",
    "migrate",
    "migrate_sync",
    "new_ledger_id",
    "require",
    "verify_tenant",
]
