"""The models that a caller may use now, the same for every transport."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import LorryError
from lorry.gateway import wire
from lorry.gateway.admission import Admission
from lorry.gateway.context import CallContext
from lorry.ids import TenantId
from lorry.registry.authz import Caller
from lorry.registry.entries import AdapterEntry, GrantEntry
from lorry.registry.snapshot import Resolution, Snapshot

TENANTS_KEPT = 256
"""Tenants whose sorted names are kept, those that asked last."""

_Named = Sequence[tuple[str, str]]
"""(bare name, id of the base or adapter), by name."""


class Names:
    """The names of what each tenant has a grant on, sorted once for each change of its grants, so that a page costs
    what is in it and not what the tenant has."""

    def __init__(self) -> None:
        self._kept: OrderedDict[TenantId, tuple[Mapping[str, GrantEntry], _Named]] = OrderedDict()

    def of(self, snapshot: Snapshot, tenant: TenantId) -> _Named:
        grants = snapshot.grants_of(tenant)
        kept = self._kept.get(tenant)
        if kept is not None and kept[0] is grants:
            self._kept.move_to_end(tenant)
            return kept[1]
        granted = [grant.resource for grant in grants.values() if grant.revoked_at is None]
        named = [(name, resource) for resource in granted if (name := snapshot.resource_name(resource))]
        named.sort()
        if len(named) == len(granted):  # else one is yet to come, without a change of the grants
            self._kept[tenant] = grants, named
            self._kept.move_to_end(tenant)
            if len(self._kept) > TENANTS_KEPT:
                self._kept.popitem(last=False)
        return named


class Models:
    """Reads the newest snapshot; asks no engine."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._names = Names()

    async def seen_by(self, context: CallContext) -> Catalog:
        """Authenticates. What one call is told is all of one snapshot."""
        _, snapshot, caller = await self._admission.authenticate(context)
        return Catalog(self._admission, self._names, snapshot, caller)


@dataclass(frozen=True, slots=True)
class Catalog:
    """What ``caller`` may use in one snapshot."""

    _admission: Admission
    _names: Names
    _snapshot: Snapshot
    caller: Caller

    def page(self, after: str, size: int) -> tuple[list[pb.Model], bool]:
        """At most ``size`` of those whose bare name comes after ``after``, by name, and whether there are more."""
        found = list(islice(self._usable(after), size + 1))
        made = [self._made(self._snapshot, self.caller, one, one.name) for one in found[:size]]
        return made, len(found) > size

    def _usable(self, after: str) -> Iterator[Resolution]:
        named = self._names.of(self._snapshot, self.caller.tenant)
        for _, resource in islice(named, bisect_right(named, after, key=itemgetter(0)), None):
            if (found := self._snapshot.usable(self.caller, resource)) is not None:
                yield found

    def get(self, name: str, field: str) -> pb.Model:
        """By any name that a request takes. Raises InvalidRequest naming ``field`` where it is empty, and what a
        request for that model would get."""
        snapshot, caller = self._snapshot, self.caller
        return self._made(snapshot, caller, self._admission.resolve(snapshot, caller, field, name), name)

    def _made(self, snapshot: Snapshot, caller: Caller, found: Resolution, name: str) -> pb.Model:
        adapter = snapshot.tables.adapters.get(found.adapter_id) if found.adapter_id else None
        created = found.base.created_at if adapter is None else adapter.versions[found.version].created_at
        aliases = () if adapter is None else self._aliases(snapshot, caller, adapter)
        return wire.model(found, name, aliases, created)

    def _aliases(self, snapshot: Snapshot, caller: Caller, adapter: AdapterEntry) -> Iterator[str]:
        for alias in sorted(adapter.aliases):
            name = f"{adapter.resource}@{alias}"
            try:
                snapshot.resolve(caller, name, "", self._admission.now())
            except LorryError:
                continue  # its version may not be served, or a pin says another
            yield name


__all__ = ["Catalog", "Models", "Names"]
