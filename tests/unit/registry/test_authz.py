"""Only ``verify_tenant`` makes a verified tenant id, and tenant data is reached with one alone."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import NamedTuple, get_type_hints

import pytest

import lorry.registry
from lorry.errors import ResourceNotFound
from lorry.ids import TenantId
from lorry.registry.accounts import repository as logins
from lorry.registry.accounts import sessions
from lorry.registry.adapters import repository as adapters
from lorry.registry.adapters import summaries
from lorry.registry.aliases import repository as aliases
from lorry.registry.audit import repository as audit
from lorry.registry.authz import VerifiedTenantId, verify_tenant
from lorry.registry.grants import repository as grants
from lorry.registry.leases import repository as leases
from lorry.registry.limits import repository as quotas
from lorry.registry.prices import repository as prices
from lorry.registry.tenants import repository as tenants
from lorry.registry.usage import outcomes_repository as usage_outcomes
from lorry.registry.usage import repository as usage
from lorry.registry.usage import sums_repository as usage_sums


class Proof(NamedTuple):
    tenant: TenantId
    role: str


def test_verify_tenant() -> None:
    own, other = TenantId("tn_a"), TenantId("tn_b")
    assert verify_tenant(Proof(own, "member"), own) == own
    assert verify_tenant(Proof(own, "platform_admin"), other) == other
    for role in ("owner", "operator", "member", "viewer", "", "admin"):
        with pytest.raises(ResourceNotFound):
            verify_tenant(Proof(own, role), other)


def test_minted_in_one_place() -> None:
    root = Path(str(lorry.registry.__file__)).parent.parent
    places = []
    for path in root.rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "VerifiedTenantId(" in source else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "VerifiedTenantId":
                places.append(path.name)
    assert places == ["authz.py"]


UNVERIFIED = {
    "find_tenant", "open_tenant", "list_tenants", "insert_tenant",  # names to ids, and the administrator's list
    "find_by_name",  # the caller's own grant decides next
    "require_servable", "insert_version", "list_versions",  # on a row that was opened
    "append", "add_sums", "base_names", "touch_keys", "uneven", "put_outcomes",  # the gateway's own ledger
    "charge", "end", "forget", "leases_of", "lock_quotas", "open_months", "quotas_of", "use",  # of a gateway's quotas
    "_in_ledger", "_spend",
    "find_by_username", "lock_by_id",  # a password decides next
    "lock_counts", "read_counts", "put_counts", "forget_counts",  # of attempts, which are nobody's yet
    "insert_session", "find_session", "touch_session", "end_sessions", "forget_sessions",  # the cookie decides, or the
    # caller's tenant
}  # fmt: skip


def test_repositories_take_verified_ids() -> None:
    for module in (
        adapters, aliases, audit, grants, leases, logins, prices, quotas, sessions, summaries, tenants, usage,
        usage_sums, usage_outcomes,
    ):  # fmt: skip
        for name, function in inspect.getmembers(module, inspect.iscoroutinefunction):
            if function.__module__ != module.__name__ or name in UNVERIFIED:
                continue
            assert get_type_hints(function).get("tenant") is VerifiedTenantId, f"{module.__name__}.{name}"
