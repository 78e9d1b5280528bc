"""The rows of a snapshot: frozen, with times as Unix seconds. Built by ``loading``, read by ``snapshot``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import TextPlan
from lorry.ids import BaseDigest, TenantId
from lorry.layers.spec import DecoderSpec


class VersionState(StrEnum):
    """REJECTED and QUARANTINED versions are never served; nothing leaves REJECTED or QUARANTINED."""

    READY = "READY"
    REJECTED = "REJECTED"
    QUARANTINED = "QUARANTINED"


@dataclass(frozen=True, slots=True)
class TenantEntry:
    id: TenantId
    name: str
    suspended: bool
    weight: int = 1


@dataclass(frozen=True, slots=True)
class KeyEntry:
    key_id: str
    tenant: TenantId
    principal: str
    role: str
    mac: str = field(repr=False)
    pepper_id: str = field(repr=False)
    expires_at: float | None
    revoked_at: float | None


@dataclass(frozen=True, slots=True)
class LoginEntry:
    """A login whose role or state changed a short time ago: user tokens that were made before may say otherwise."""

    id: str
    role: str
    disabled: bool
    changed_at: float


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A web session that was ended a short time ago."""

    id: str
    ended_at: float


@dataclass(frozen=True, slots=True)
class BaseModelEntry:
    """A registered base. ``config`` is its Hugging Face config.json; ``spec`` what Lorry reads from it."""

    id: str
    name: str
    base_digest: BaseDigest
    tokenizer_sha256: str
    context_tokens: int
    config: Mapping[str, Any] = field(repr=False)
    spec: DecoderSpec = field(repr=False)
    created_at: float = 0.0

    @property
    def resource(self) -> str:
        """``models/{base}``"""
        return f"models/{self.name}"


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """``vocabulary``: rows of its logits; ``text``: its own text side. None: the base's. A ``deprecated`` one is READY
    and served to who names it by number, alias or pin; a bare name never means it."""

    number: int
    state: VersionState
    base_id: str
    ref: AdapterRef
    vocabulary: int | None = None
    text: TextPlan | None = None
    deprecated: bool = False
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class AliasEntry:
    """What an alias points at: ``canary_number`` gets ``canary_permille`` of a thousand sticky keys, ``number`` the
    others."""

    name: str
    number: int
    canary_number: int | None = None
    canary_permille: int = 0


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """With all its versions and its aliases that are not deleted. A ``deleted`` adapter is as unknown as one that never
    was."""

    id: str
    tenant: TenantId
    tenant_name: str
    name: str
    versions: Mapping[int, VersionEntry]
    aliases: Mapping[str, AliasEntry]
    deleted: bool = False

    @property
    def resource(self) -> str:
        """``tenants/{t}/adapters/{a}``"""
        return f"tenants/{self.tenant_name}/adapters/{self.name}"


@dataclass(frozen=True, slots=True)
class GrantEntry:
    """A tenant's newest grant on a resource. ``resource`` is an adapter's or a base's id."""

    tenant: TenantId
    resource: str
    revoked_at: float | None


@dataclass(frozen=True, slots=True)
class PinEntry:
    """``hard``: every other version is refused to the tenant. Else it is what the bare name means to it."""

    tenant: TenantId
    adapter: str
    version: int
    hard: bool = True


@dataclass(frozen=True, slots=True)
class QuotaEntry:
    """Limits of a tenant, or with ``adapter`` (an id, not "") of its use of that adapter. None limits nothing."""

    id: str
    tenant: TenantId
    adapter: str
    requests_per_minute: int | None
    concurrency: int | None
    queue_length: int | None
    tokens_per_month: int | None
    max_tokens_cap: int | None
    revision: int


__all__ = [
    "AdapterEntry",
    "AliasEntry",
    "BaseModelEntry",
    "EndedSession",
    "GrantEntry",
    "KeyEntry",
    "LoginEntry",
    "PinEntry",
    "QuotaEntry",
    "TenantEntry",
    "VersionEntry",
    "VersionState",
]
