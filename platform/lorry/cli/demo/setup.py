"""Fills an empty platform through the admin API: base, tenants, keys, adapters, grants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lorry.cli.demo.scenario import BASE, BASE_MODEL, TENANTS
from lorry.client.admin import AdminClient
from lorry.engine.contract import EngineInfo
from lorry.registry.tenants.roles import PLATFORM_TENANT

PROMPT, CACHED_PROMPT, OUTPUT = "0.10", "0.02", "0.40"
"""Prices of a million tokens, in euros."""
TOKENS_PER_MONTH, CONCURRENCY = 1_000_000, 16
"""Of each tenant: far from what the demo asks for."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One adapter version as the admin API answered it."""

    adapter: str
    version: int
    sha256: str
    rank: int
    size_bytes: int
    checks: int


@dataclass(frozen=True, slots=True)
class Made:
    """``keys`` by tenant's name, ``passwords`` by user's; ``spare`` is the (name, text) of a key to be revoked."""

    keys: dict[str, str] = field(repr=False)
    passwords: dict[str, str] = field(repr=False)
    spare: tuple[str, str] = field(repr=False)
    versions: tuple[Registered, ...]


async def register_base(admin: AdminClient, info: EngineInfo, config_json: str) -> None:
    await admin.create_base(BASE, info.base, info.tokenizer_sha256, info.context_tokens, config_json)


async def fill(admin: AdminClient, examples: Path, say: Callable[[str], None]) -> Made:
    keys: dict[str, str] = {}
    versions: list[Registered] = []
    spare: Any = None
    for tenant in TENANTS:
        await admin.create_tenant(tenant.name, tenant.display_name)
        keys[tenant.name] = (await admin.create_key(tenant.name, "developer", "owner")).text
        await admin.grant(tenant.name, BASE_MODEL)
        await admin.set_price(tenant.name, "EUR", prompt=PROMPT, cached_prompt=CACHED_PROMPT, output=OUTPUT)
        await admin.set_quota(tenant.name, tokens_per_month=TOKENS_PER_MONTH, concurrency=CONCURRENCY)
        for name in tenant.adapters:
            await admin.create_adapter(tenant.name, name)
            version = await admin.push(tenant.adapter(name), examples / name, BASE_MODEL)
            versions.append(
                Registered(
                    tenant.adapter(name),
                    version.version,
                    version.sha256,
                    version.rank,
                    version.size_bytes,
                    len(version.checks),
                )
            )
            await admin.set_alias(tenant.adapter(name), "prod", version.version)
            say(f"registered {version.name}  rank {version.rank}  sha256 {version.sha256[:12]}")
    spare = await admin.create_key(TENANTS[0].name, "former-developer", "member")
    passwords: dict[str, str] = {}
    for name, user, role in ((TENANTS[0].name, "owner", "owner"), (PLATFORM_TENANT, "admin", "admin")):
        made = await admin.create_user(name, user, role)
        passwords[f"{user}@{name}"] = made.password
    return Made(keys, passwords, (spare.api_key.name, spare.text), tuple(versions))


__all__ = ["Made", "Registered", "fill", "register_base"]
