"""What the gateway's hot path reads: the registry at one epoch, immutable and in memory. No SQL.

A snapshot is never changed; ``replace`` answers a new one that shares with it whatever it did not touch, so that it
costs what changed and not what there is.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lorry.errors import (
    GrantRevoked,
    InvalidRequest,
    LorryError,
    ModelNotFound,
    TenantSuspended,
    Unauthenticated,
    VersionNotReady,
)
from lorry.ids import TenantId
from lorry.registry.authz import Caller, Role, verify_tenant
from lorry.registry.entries import (
    AdapterEntry,
    BaseModelEntry,
    EndedSession,
    GrantEntry,
    KeyEntry,
    LoginEntry,
    PinEntry,
    QuotaEntry,
    TenantEntry,
)
from lorry.registry.keys import Peppers, key_id_of
from lorry.registry.maps import PersistentMap
from lorry.registry.names import AdapterName, BaseName, parse_model
from lorry.registry.resolving import NOT_FOUND, Resolution, check_digest, pick, require_served
from lorry.registry.tables import Replaced, Rows, Tables, put
from lorry.registry.usertokens import is_token, read_token

REVOKED_VISIBLE_S = 24 * 3600.0
"""For this long a revoked grant is told to the tenant that had it; afterwards the model is unknown to it."""

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_NO_KEY = "api key: missing, unknown, expired or revoked; send a valid one as `authorization: Bearer <api key>`"
_NO_GRANTS: Mapping[str, GrantEntry] = {}


class _Proof(NamedTuple):
    tenant: TenantId
    role: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The registry at ``epoch``. Safe to keep and read from anywhere for as long as one likes."""

    epoch: int
    tables: Tables
    peppers: Peppers = field(repr=False)
    base_names: Mapping[str, str] = field(repr=False, default_factory=PersistentMap)
    adapter_names: Mapping[tuple[str, str], str] = field(repr=False, default_factory=PersistentMap)

    @classmethod
    def build(cls, epoch: int, tables: Tables, peppers: Peppers) -> Snapshot:
        return cls(epoch, tables, peppers).replace(
            epoch, bases=tables.bases.values(), adapters=tables.adapters.values()
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
        pins: Replaced[PinEntry] = (),
        quotas: Replaced[QuotaEntry] = (),
        logins: Iterable[LoginEntry] = (),
        sessions: Iterable[EndedSession] = (),
    ) -> Snapshot:
        """This snapshot with newer rows put in (a pin or quota of None is a cleared one), at a later epoch."""
        ended = tuple(sessions)
        rows = Rows(tenants, keys, tuple(bases), tuple(adapters), grants, pins, quotas, tuple(logins), ended)
        return self.replaced(epoch, rows)

    def replaced(self, epoch: int, rows: Rows) -> Snapshot:
        """As ``replace``."""
        return Snapshot(
            epoch,
            put(self.tables, rows),
            self.peppers,
            PersistentMap.of(self.base_names).updated((base.name, base.id) for base in rows.bases),
            PersistentMap.of(self.adapter_names).updated(((a.tenant_name, a.name), a.id) for a in rows.adapters),
        )

    def authenticate(self, api_key: str, now: float, *, begun: bool = False) -> Caller:
        """The caller behind an API key or a user token. ``now`` is Unix seconds. ``begun``: whether a call that it
        began may go on, which a token's own expiry does not end; its session's end does.

        Raises Unauthenticated for what is missing, malformed, unknown, expired or revoked, and for a token whose login
        is disabled or whose session has ended (equal words); and TenantSuspended. The MAC is computed and compared in
        constant time whether or not there is such a key.
        """
        if is_token(api_key):
            return self._logged_in(api_key, now, begun)
        key_id = key_id_of(api_key)
        entry = self.tables.keys.get(key_id) if key_id else None
        mac = self.peppers.mac(api_key, entry.pepper_id if entry else "")
        matches = hmac.compare_digest(mac, entry.mac if entry else "0" * 64)
        if entry is None or not matches:
            raise Unauthenticated(_NO_KEY)
        if entry.revoked_at is not None or (entry.expires_at is not None and entry.expires_at <= now):
            raise Unauthenticated(_NO_KEY)
        return self._caller(entry.tenant, entry.principal, entry.role, entry.key_id, entry.expires_at)

    def _logged_in(self, token: str, now: float, begun: bool) -> Caller:
        claims = read_token(self.peppers, token, now, begun=begun)
        if claims is None or claims.session in self.tables.sessions:
            raise Unauthenticated(_NO_KEY)
        changed = self.tables.logins.get(claims.login)
        if changed is not None and changed.disabled:
            raise Unauthenticated(_NO_KEY)
        role = claims.role if changed is None else changed.role
        tenant, actor = TenantId(claims.tenant), f"user/{claims.login}"
        return self._caller(tenant, claims.principal, role, actor, claims.session_ends_at)

    def _caller(self, tenant_id: TenantId, principal: str, role: str, key_id: str, expires_at: float | None) -> Caller:
        tenant = self.tables.tenants.get(tenant_id)
        if tenant is None:
            raise Unauthenticated(_NO_KEY)
        if tenant.suspended:
            raise TenantSuspended(f"tenant: {tenant.name!r} is suspended; ask the platform's operator")
        verified = verify_tenant(_Proof(tenant_id, role), tenant.id)
        return Caller(verified, tenant.name, principal, role, key_id, role == Role.PLATFORM_ADMIN, expires_at)

    def resolve(
        self, caller: Caller, model_name: str, expected_sha256: str, now: float, sticky: str = ""
    ) -> Resolution:
        """What ``model_name`` means to this caller. "" for ``expected_sha256`` expects nothing; ``sticky`` draws
        between an alias and its canary (``resolving.draw``).

        Raises ModelNotFound in equal words, after equal work, for a malformed or unknown name, one never granted and a
        deleted adapter; GrantRevoked for a day after the tenant's own grant was revoked; PinMismatch where the tenant's
        hard pin or ``expected_sha256`` differs (``want`` and ``have`` in the metadata; for a base, its digest);
        AdapterQuarantined; VersionNotReady; InvalidRequest for an ``expected_sha256`` that is none.
        """
        if expected_sha256 and not _SHA256.fullmatch(expected_sha256):
            raise InvalidRequest.field("expected_sha256", f"{expected_sha256[:80]!r} is not 64 hex digits")
        name = parse_model(model_name)
        if isinstance(name, BaseName):
            base = self.tables.bases.get(self.base_names.get(name.base, ""))
            self._require_grant(caller, base.id if base else "", base is not None, now)
            assert base is not None
            check_digest(expected_sha256, base.base_digest)
            return self._base(base)
        if name is None:
            raise ModelNotFound(NOT_FOUND)
        adapter = self.tables.adapters.get(self.adapter_names.get((name.tenant, name.adapter), ""))
        visible = adapter is not None and not adapter.deleted
        self._require_grant(caller, adapter.id if adapter else "", visible, now)
        assert adapter is not None
        found = self._adapter(caller, adapter, name, sticky)
        check_digest(expected_sha256, found.sha256)
        return found

    def weight_of(self, tenant: TenantId) -> int:
        """Of its turns; 1 where the snapshot does not have it."""
        entry = self.tables.tenants.get(tenant)
        return 1 if entry is None else entry.weight

    def grants_of(self, tenant: TenantId) -> Mapping[str, GrantEntry]:
        """By resource. The same object in every snapshot in which no grant of the tenant changed."""
        return self.tables.grants.get(tenant, _NO_GRANTS)

    def resource_name(self, resource: str) -> str | None:
        """The bare name of a base or an adapter by its id: for ever the same. None where it is not known here yet."""
        if base := self.tables.bases.get(resource):
            return base.resource
        adapter = self.tables.adapters.get(resource)
        return adapter.resource if adapter else None

    def usable(self, caller: Caller, resource: str) -> Resolution | None:
        """What the bare name of that base or adapter, which the caller has a grant on, means to it; None where it could
        not be served now."""
        if base := self.tables.bases.get(resource):
            return self._base(base)
        adapter = self.tables.adapters.get(resource)
        if adapter is None or adapter.deleted:
            return None
        try:
            return self._adapter(caller, adapter, AdapterName(adapter.tenant_name, adapter.name), "")
        except LorryError:
            return None

    def require_held(self, caller: Caller, held: Resolution, now: float) -> None:
        """Raises what a new request for the very version of ``held`` would get now: GrantRevoked, ModelNotFound,
        AdapterQuarantined, VersionNotReady. Aliases, canaries and pins do not matter: they chose the version once, and
        what changed in them meanwhile is for later requests."""
        adapter = self.tables.adapters.get(held.adapter_id) if held.adapter_id else None
        visible = not held.adapter_id or (adapter is not None and not adapter.deleted)
        self._require_grant(caller, held.adapter_id or held.base.id, visible, now)
        base = self.tables.bases.get(held.base.id)
        version = adapter.versions.get(held.version) if adapter else None
        same = version is None if adapter is None else version is not None and version.ref.digest == held.sha256
        if not same or base is None or base.base_digest != held.base.base_digest:
            raise ModelNotFound(f"model: {held.name} is no longer what this request began with; send it again")
        if adapter is not None and version is not None:
            require_served(adapter, version)

    def _require_grant(self, caller: Caller, resource: str, visible: bool, now: float) -> None:
        """``resource`` is looked up even where it is "" or not ``visible``, so that all of these take one time."""
        grant = self.tables.grants.get(caller.tenant, _NO_GRANTS).get(resource)
        if not visible or grant is None:
            raise ModelNotFound(NOT_FOUND)
        if grant.revoked_at is not None:
            if now - grant.revoked_at >= REVOKED_VISIBLE_S:
                raise ModelNotFound(NOT_FOUND)
            raise GrantRevoked("model: this tenant's grant on it was revoked; ask the owner for a new one")

    def _base(self, base: BaseModelEntry) -> Resolution:
        return Resolution("", 0, None, base, "", False, self.epoch)

    def _adapter(self, caller: Caller, adapter: AdapterEntry, name: AdapterName, sticky: str) -> Resolution:
        pins = self.tables.pins.get(caller.tenant)
        picked = pick(adapter, name, pins.get(adapter.id) if pins else None, sticky)
        version = picked.version
        require_served(adapter, version)
        base = self.tables.bases.get(version.base_id)
        if base is None:
            raise VersionNotReady(
                f"model: the base of {adapter.resource}/versions/{version.number} is not known here yet; try again"
            )
        return Resolution(
            adapter.resource,
            version.number,
            version.ref,
            base,
            name.alias,
            picked.canary,
            self.epoch,
            version.vocabulary,
            version.text,
            adapter.id,
            picked.pinned,
        )


__all__ = ["REVOKED_VISIBLE_S", "Resolution", "Snapshot", "Tables"]
