"""Commands with what they ask and say, by noun."""

from __future__ import annotations

from tests.integration.cli.commands import adapters, aliases, bases, generating, grants, replicas, tenants, usage, users
from tests.integration.cli.commands.case import Case

CASES: list[Case] = [
    *generating.CASES,
    *adapters.CASES,
    *aliases.CASES,
    *bases.CASES,
    *tenants.CASES,
    *grants.CASES,
    *usage.CASES,
    *users.CASES,
    *replicas.CASES,
]

__all__ = ["CASES", "Case"]
