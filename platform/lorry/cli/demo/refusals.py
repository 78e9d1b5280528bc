"""What the platform refuses. None of it yields a token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorry.cli.demo.scenario import BASE_MODEL, TENANTS
from lorry.cli.demo.setup import Made
from lorry.client import AsyncClient
from lorry.client.admin import AdminClient
from lorry.errors import LorryError, Unauthenticated

_REVOKED_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """``code`` "" means that it was not refused, which fails the demo."""

    case: str
    code: str
    reason: str
    message: str
    tokens: int

    def row(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
            "tokens": self.tokens,
        }


async def refuse_all(address: str, admin: AdminClient, made: Made, bad_adapter: Path) -> list[Refusal]:
    """``bad_adapter`` is a folder that PEFT could apply and this platform cannot."""
    acme, globex = TENANTS[0], TENANTS[1]
    foreign = globex.adapter(globex.adapters[0])
    own = acme.adapter(acme.adapters[0])
    spare_name, spare_key = made.spare
    await admin.revoke_key(spare_name)
    await _revoked(address, spare_key)
    found = [
        await _call(address, made.keys[acme.name], "another tenant's adapter", foreign),
        await _call(address, made.keys[acme.name], "an unknown adapter", acme.adapter("no-such-adapter")),
        await _call(address, spare_key, "a revoked key", own),
        await _call(address, made.keys[acme.name], "a wrong expected_sha256", own, expected_sha256="0" * 64),
        await _call(address, made.keys[acme.name], "a prompt that is longer than the context", own, length=4000),
    ]
    await admin.create_adapter(acme.name, "broken")
    pushed = await _refusal(
        "registering an adapter that cannot be applied",
        lambda: admin.push(acme.adapter("broken"), bad_adapter, BASE_MODEL),
    )
    return [*found, pushed, await _call(address, made.keys[acme.name], "calling it", acme.adapter("broken"))]


async def _call(address: str, key: str, case: str, model: str, expected_sha256: str = "", length: int = 1) -> Refusal:
    tokens = 0
    client = AsyncClient(address, key)

    async def generate() -> None:
        nonlocal tokens
        params: dict[str, Any] = {"expected_sha256": expected_sha256} if expected_sha256 else {}
        async for delta in client.stream(model, "again " * length, max_tokens=8, **params):
            tokens += len(delta.token_ids) or bool(delta.text)

    try:
        refusal = await _refusal(case, generate)
    finally:
        await client.close()
    return Refusal(case, refusal.code, refusal.reason, refusal.message, tokens)


async def _revoked(address: str, key: str) -> None:
    """Waits until the revocation has reached the gateway, which it promises within a second."""
    client = AsyncClient(address, key)
    try:
        async with asyncio.timeout(_REVOKED_WITHIN_S):
            while True:
                await client.list_models()
                await asyncio.sleep(0.05)
    except Unauthenticated:
        return
    finally:
        await client.close()


async def _refusal(case: str, act: Callable[[], Awaitable[Any]]) -> Refusal:
    try:
        await act()
    except LorryError as error:
        return Refusal(case, error.grpc_code, error.reason, error.message, 0)
    return Refusal(case, "", "", "was not refused", 0)


__all__ = ["Refusal", "refuse_all"]
