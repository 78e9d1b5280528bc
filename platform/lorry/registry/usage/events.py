"""One request's row in the ledger."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lorry.registry.authz import VerifiedTenantId
from lorry.registry.leases.terms import Charge


@dataclass(frozen=True, slots=True)
class Usage:
    """One request that ran. ``outcome`` is ``OK`` or the reason of the error that ended it; ``adapter`` and
    ``adapter_sha256`` are "" and ``version`` 0 for the base; ``alias`` is "" where none was named. Times are aware,
    durations seconds as the engine saw them, None where the request ended before they were known. ``charges``: whom its
    tokens are charged to with it; the ledger's row does not have them."""

    ledger_id: str
    tenant_id: VerifiedTenantId
    key_id: str
    request_id: str
    adapter: str
    version: int
    adapter_sha256: str
    base_sha256: str
    prompt_tokens: int
    output_tokens: int
    cached_prompt_tokens: int
    outcome: str
    started_at: datetime
    ended_at: datetime
    principal: str = ""
    alias: str = ""
    canary: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    replica: str = ""
    queue_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    charges: tuple[Charge, ...] = ()


def new_ledger_id() -> str:
    return f"us_{uuid.uuid4().hex}"


__all__ = ["Usage", "new_ledger_id"]
