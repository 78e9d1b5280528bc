"""The models that a caller may use now, the same for every transport."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lorry.api.v1 import generate_pb2 as pb
from lorry.errors import LorryError
from lorry.gateway import wire
from lorry.gateway.admission import Admission
from lorry.gateway.context import CallContext
from lorry.registry.authz import Caller
from lorry.registry.entries import AdapterEntry
from lorry.registry.snapshot import Resolution, Snapshot


class Models:
    """Reads the newest snapshot; asks no engine."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def seen_by(self, context: CallContext) -> Catalog:
        """Authenticates. What one call is told is all of one snapshot."""
        _, snapshot, caller = await self._admission.authenticate(context)
        return Catalog(self._admission, snapshot, caller)


@dataclass(frozen=True, slots=True)
class Catalog:
    """What ``caller`` may use in one snapshot."""

    _admission: Admission
    _snapshot: Snapshot
    caller: Caller

    def page(self, after: str, size: int) -> tuple[list[pb.Model], bool]:
        """At most ``size`` of those whose bare name comes after ``after``, by name, and whether there are more."""
        rest = [found for found in self._snapshot.list_models(self.caller) if found.name > after]
        made = [self._made(self._snapshot, self.caller, found, found.name) for found in rest[:size]]
        return made, len(rest) > size

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


__all__ = ["Catalog", "Models"]
