"""What the gateway's hot path reads: the registry at one epoch, immutable and in memory. No SQL.

A snapshot is never changed; ``replace`` answers a new one that shares every table it did not touch.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.plan import TextPlan
from lorry.errors import (
    AdapterQuarantined,
    GrantRevoked,
    InvalidRequest,
    LorryError,
    ModelNotFound,
    PinMismatch,
    TenantSuspended,
    Unauthenticated,
    VersionNotReady,
)
from lorry.ids import TenantId
from lorry.registry.authz import Caller, Role, verify_tenant
from lorry.registry.entries import (
    AdapterEntry,
    BaseModelEntry,
    GrantEntry,
    KeyEntry,
    PinEntry,
    TenantEntry,
    VersionEntry,
    VersionState,
)
from lorry.registry.keys import Peppers, key_id_of
from lorry.registry.names import AdapterName, BaseName, parse_model

REVOKED_VISIBLE_S = 24 * 3600.0
"""For this long a revoked grant is told to the tenant that had it; afterwards the model is unknown to it."""

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_NOT_FOUND = "model: no model of this name is available to this tenant; ListModels lists those that are"
_NO_KEY = "api key: missing, unknown, expired or revoked; send a valid one as `authorization: Bearer <api key>`"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a model name means now. For a base: ``adapter`` is "", ``version`` 0 and ``ref`` None.

    ``epoch`` is that of the snapshot which resolved it. ``vocabulary`` and ``text``: see VersionEntry.
    """

    adapter: str
    version: int
    ref: AdapterRef | None
    base: BaseModelEntry
    alias: str
    canary: bool
    epoch: int
    vocabulary: int | None = None
    text: TextPlan | None = None

    @property
    def name(self) -> str:
        """The bare name that a request may use: the adapter's, or the base's."""
        return self.adapter or self.base.resource

    @property
    def sha256(self) -> str:
        """The version's digest; "" for a base."""
        return self.ref.digest if self.ref else ""

    @property
    def tokenizer_sha256(self) -> str:
        """Of the text side that serves it: the version's own, or the base's."""
        return self.base.tokenizer_sha256 if self.text is None else self.text.sha256


class _Proof(NamedTuple):
    tenant: TenantId
    role: str


@dataclass(frozen=True, slots=True)
class Tables:
    """The snapshot's tables. Grants and pins lie by tenant, so listing one tenant's models reads no other's."""

    tenants: Mapping[str, TenantEntry] = field(default_factory=dict)
    keys: Mapping[str, KeyEntry] = field(default_factory=dict)
    bases: Mapping[str, BaseModelEntry] = field(default_factory=dict)
    adapters: Mapping[str, AdapterEntry] = field(default_factory=dict)
    grants: Mapping[str, Mapping[str, GrantEntry]] = field(default_factory=dict)
    pins: Mapping[str, Mapping[str, PinEntry]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The registry at ``epoch``. Safe to keep and read from anywhere for as long as one likes."""

    epoch: int
    tables: Tables
    peppers: Peppers = field(repr=False)
    base_names: Mapping[str, str] = field(repr=False, default_factory=dict)
    adapter_names: Mapping[tuple[str, str], str] = field(repr=False, default_factory=dict)

    @classmethod
    def build(cls, epoch: int, tables: Tables, peppers: Peppers) -> Snapshot:
        return cls(
            epoch,
            tables,
            peppers,
            {base.name: base.id for base in tables.bases.values()},
            {(adapter.tenant_name, adapter.name): adapter.id for adapter in tables.adapters.values()},
        )

    def replace(
        self,
        epoch: int,
        *,
        tenants: Iterable[TenantEntry] = (),
        keys: Iterable[KeyEntry] = (),
        bases: Iterable[BaseModelEntry] = (),
        adapters: Iterable[AdapterEntry] = (),
        grants: Iterable[GrantEntry] = (),
        pins: Iterable[tuple[TenantId, str, PinEntry | None]] = (),
    ) -> Snapshot:
        """This snapshot with newer rows put in (a pin of None is a cleared one), at a later epoch."""
        old, tenants, bases, adapters = self.tables, tuple(tenants), tuple(bases), tuple(adapters)
        new_grants, new_pins = dict(old.grants), dict(old.pins)
        for grant in grants:
            new_grants[grant.tenant] = {**new_grants.get(grant.tenant, {}), grant.resource: grant}
        for tenant, adapter_id, pin in pins:
            kept = {key: value for key, value in new_pins.get(tenant, {}).items() if key != adapter_id}
            new_pins[tenant] = {**kept, adapter_id: pin} if pin else kept
        tables = Tables(
            {**old.tenants, **{row.id: row for row in tenants}} if tenants else old.tenants,
            {**old.keys, **{row.key_id: row for row in keys}},
            {**old.bases, **{row.id: row for row in bases}} if bases else old.bases,
            {**old.adapters, **{row.id: row for row in adapters}} if adapters else old.adapters,
            new_grants,
            new_pins,
        )
        if bases or adapters:
            return Snapshot.build(epoch, tables, self.peppers)
        return replace(self, epoch=epoch, tables=tables)

    def authenticate(self, api_key: str, now: float) -> Caller:
        """The caller behind a key. ``now`` is Unix seconds.

        Raises Unauthenticated for a missing, malformed, unknown, expired or revoked key (equal words), and
        TenantSuspended. The MAC is computed and compared in constant time whether or not the key exists.
        """
        key_id = key_id_of(api_key)
        entry = self.tables.keys.get(key_id) if key_id else None
        mac = self.peppers.mac(api_key, entry.pepper_id if entry else "")
        matches = hmac.compare_digest(mac, entry.mac if entry else "0" * 64)
        if entry is None or not matches:
            raise Unauthenticated(_NO_KEY)
        if entry.revoked_at is not None or (entry.expires_at is not None and entry.expires_at <= now):
            raise Unauthenticated(_NO_KEY)
        tenant = self.tables.tenants.get(entry.tenant)
        if tenant is None:
            raise Unauthenticated(_NO_KEY)
        if tenant.suspended:
            raise TenantSuspended(f"tenant: {tenant.name!r} is suspended; ask the platform's operator")
        verified = verify_tenant(_Proof(entry.tenant, entry.role), tenant.id)
        admin = entry.role == Role.PLATFORM_ADMIN
        return Caller(verified, tenant.name, entry.principal, entry.role, entry.key_id, admin)

    def resolve(self, caller: Caller, model_name: str, expected_sha256: str, now: float) -> Resolution:
        """What ``model_name`` means to this caller. "" for ``expected_sha256`` expects nothing.

        Raises ModelNotFound in equal words for a malformed or unknown name and one never granted;
        GrantRevoked for a day after the tenant's own grant was revoked; PinMismatch where the tenant's pin
        or ``expected_sha256`` differs (``want`` and ``have`` in the metadata; for a base, its digest);
        AdapterQuarantined; VersionNotReady; InvalidRequest for an ``expected_sha256`` that is none.
        """
        if expected_sha256 and not _SHA256.fullmatch(expected_sha256):
            raise InvalidRequest.field("expected_sha256", f"{expected_sha256[:80]!r} is not 64 hex digits")
        name = parse_model(model_name)
        if isinstance(name, BaseName):
            base = self.tables.bases.get(self.base_names.get(name.base, ""))
            self._require_grant(caller, base.id if base else None, now)
            assert base is not None
            found = Resolution("", 0, None, base, "", False, self.epoch)
            _check_digest(expected_sha256, base.base_digest)
            return found
        if name is None:
            raise ModelNotFound(_NOT_FOUND)
        adapter = self.tables.adapters.get(self.adapter_names.get((name.tenant, name.adapter), ""))
        self._require_grant(caller, adapter.id if adapter else None, now)
        assert adapter is not None
        found = self._resolve_adapter(caller, adapter, name)
        _check_digest(expected_sha256, found.sha256)
        return found

    def list_models(self, caller: Caller) -> list[Resolution]:
        """Every base and adapter that the caller may use now under its bare name, sorted by name."""
        found: list[Resolution] = []
        for grant in self.tables.grants.get(caller.tenant, {}).values():
            if grant.revoked_at is not None:
                continue
            if base := self.tables.bases.get(grant.resource):
                found.append(Resolution("", 0, None, base, "", False, self.epoch))
            elif adapter := self.tables.adapters.get(grant.resource):
                try:
                    name = AdapterName(adapter.tenant_name, adapter.name)
                    found.append(self._resolve_adapter(caller, adapter, name))
                except LorryError:
                    continue  # it has no version that could be served now
        return sorted(found, key=lambda item: item.name)

    def _require_grant(self, caller: Caller, resource: str | None, now: float) -> None:
        grant = self.tables.grants.get(caller.tenant, {}).get(resource) if resource else None
        if grant is None:
            raise ModelNotFound(_NOT_FOUND)
        if grant.revoked_at is not None:
            if now - grant.revoked_at >= REVOKED_VISIBLE_S:
                raise ModelNotFound(_NOT_FOUND)
            raise GrantRevoked("model: this tenant's grant on it was revoked; ask the owner for a new one")

    def _resolve_adapter(self, caller: Caller, adapter: AdapterEntry, name: AdapterName) -> Resolution:
        version = self._version(caller, adapter, name)
        label = f"{adapter.resource}/versions/{version.number}"
        if version.state is VersionState.QUARANTINED:
            raise AdapterQuarantined(f"model: {label} is quarantined; use another version")
        if version.state is not VersionState.READY:
            raise VersionNotReady(f"model: {label} is {version.state}; use a READY version")
        base = self.tables.bases.get(version.base_id)
        if base is None:
            raise VersionNotReady(f"model: the base of {label} is not known here yet; try again")
        return Resolution(
            adapter.resource,
            version.number,
            version.ref,
            base,
            name.alias,
            False,
            self.epoch,
            version.vocabulary,
            version.text,
        )

    def _version(self, caller: Caller, adapter: AdapterEntry, name: AdapterName) -> VersionEntry:
        number = adapter.aliases.get(name.alias) if name.alias else name.version
        if (name.alias or name.version is not None) and number not in adapter.versions:
            raise ModelNotFound(_NOT_FOUND)
        pin = self.tables.pins.get(caller.tenant, {}).get(adapter.id)
        if pin is not None:
            if number is not None and number != pin.version:
                raise PinMismatch(
                    f"model: {name} is version {number}, this tenant is pinned to version {pin.version}; "
                    "ask for that one or have the pin changed",
                    metadata={"want": str(pin.version), "have": str(number)},
                )
            number = pin.version
        if number is not None:
            if number not in adapter.versions:
                raise VersionNotReady(f"model: the pinned version {number} of {adapter.resource} is not known here yet")
            return adapter.versions[number]
        newest = max(adapter.versions.values(), key=_serving_order, default=None)
        if newest is None:
            raise VersionNotReady(f"model: {adapter.resource} has no version yet; create one")
        return newest


def _serving_order(version: VersionEntry) -> tuple[bool, bool, int]:
    """A bare name is the newest READY version; without one, a quarantined one gives the reason."""
    return version.state is VersionState.READY, version.state is VersionState.QUARANTINED, version.number


def _check_digest(expected: str, have: str) -> None:
    if expected and not hmac.compare_digest(expected.lower(), have):
        raise PinMismatch(
            f"expected_sha256: {expected.lower()} was expected, the name resolves to {have}; nothing was generated",
            metadata={"want": expected.lower(), "have": have},
        )


__all__ = ["REVOKED_VISIBLE_S", "Resolution", "Snapshot", "Tables"]
