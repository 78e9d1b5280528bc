"""The table of rights, walked: each role gets exactly its rows, and the code asks for every row and for no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lorry
import lorry_admin
from lorry.errors import RoleTooLow
from lorry.ids import TenantId
from lorry.registry.authz import Caller, Role, VerifiedTenantId
from lorry.registry.rights import ACTIONS, require

READS = {
    "read adapters", "list adapters", "read versions", "list versions", "read residency", "read aliases",
    "list aliases", "list grants", "list pins", "list quotas", "read usage", "export usage", "read audit events",
    "verify audit events", "list prices", "list residency", "list recent requests",
}  # fmt: skip
GENERATES = {"generate", "count tokens"}
OWNS = {
    "create API keys", "list API keys", "rotate API keys", "revoke API keys", "create users", "list users",
    "change users", "set passwords",
}  # fmt: skip
ADMINISTERS = {
    "create tenants", "list tenants", "change tenants", "register base models", "give grants", "revoke grants",
    "set quotas", "delete quotas", "set prices", "make platform administrators", "list replicas", "read replicas",
    "drain replicas", "list engine memory", "list waiting requests", "list all recent requests",
}  # fmt: skip


def caller(role: str) -> Caller:
    tenant = VerifiedTenantId(TenantId("tn_a"))
    return Caller(tenant, "a", "p", role, "k", role == Role.PLATFORM_ADMIN)


def may(role: str) -> set[str]:
    return {action for action in ACTIONS if refusal(role, action) is None}


def refusal(role: str, action: str) -> RoleTooLow | None:
    try:
        require(caller(role), action)
    except RoleTooLow as error:
        return error
    return None


def test_each_role_may_what_it_is_for() -> None:
    assert may(Role.VIEWER) == READS
    assert may(Role.MEMBER) == GENERATES
    assert may(Role.OPERATOR) == set(ACTIONS) - OWNS - ADMINISTERS
    assert may(Role.OWNER) == set(ACTIONS) - ADMINISTERS
    assert may(Role.PLATFORM_ADMIN) == set(ACTIONS)
    assert may("") == may("admin") == may("nonsense") == set()


def test_roles_are_told_apart_by_the_caller_not_by_its_word() -> None:
    """A role's word alone makes no administrator."""
    with pytest.raises(RoleTooLow):
        require(Caller(VerifiedTenantId(TenantId("t")), "a", "p", Role.PLATFORM_ADMIN, "k", False), "set quotas")


def test_a_refusal_says_who_may() -> None:
    for role, action, least in (("viewer", "generate", "member"), ("", "set quotas", "platform_admin")):
        refused = refusal(role, action)
        assert refused is not None
        for word in (repr(role), action, repr(least)):
            assert word in refused.message


def test_an_action_that_is_in_no_row_is_a_mistake() -> None:
    for role in Role:
        with pytest.raises(KeyError):
            require(caller(role), "do anything")


def asked_for() -> Iterator[tuple[str, str]]:
    """(file, action) wherever the code asks, and where it hands an action on."""
    for package in (lorry, lorry_admin):
        for path in Path(str(package.__file__)).parent.rglob("*.py"):
            source = path.read_text()
            for node in ast.walk(ast.parse(source)) if "require(" in source or "servable(" in source else ():
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name == "require" and len(node.args) == 2:
                    if isinstance(node.args[1], ast.Constant):
                        yield path.name, str(node.args[1].value)
                    else:
                        assert path.name == "states.py", "an action that is not written out"
                elif name == "servable" and len(node.args) == 3:
                    assert isinstance(node.args[2], ast.Constant)
                    yield path.name, str(node.args[2].value)


def test_the_code_asks_for_every_row_and_for_no_other() -> None:
    asked = {action for _, action in asked_for()}
    assert asked | {"place versions"} == set(ACTIONS)  # that one is ``servable``'s default
