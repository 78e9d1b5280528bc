"""The slot table: what lies in which slot of the device, and proof that it still does.

It is the source of provenance on every device: an entry's key, with the digest in it, was written together with its
bytes, and ``verify`` shows that the bytes are still those.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Generic, Protocol, TypeVar

from lorry.errors import SlotIntegrity
from lorry.ids import AdapterKey, SlotId


class Held(Protocol):
    @property
    def adapter(self) -> AdapterKey: ...


E = TypeVar("E", bound=Held)


class SlotTable(ABC, Generic[E]):
    """One thread (the step loop) owns it."""

    _place: ClassVar[str]
    """What ``_places`` counts, in words."""

    def __init__(self) -> None:
        self._slots: dict[SlotId, E] = {}
        self._verified_at: dict[SlotId, int] = {}
        self._audited = SlotId(-1)

    @abstractmethod
    def _places(self, entry: E) -> Iterable[int]:
        """What it has of the device's memory: no other slot has any of it."""

    @abstractmethod
    def _intact(self, entry: E, whole: bool) -> bool:
        """Reads its bytes again and compares; where not ``whole``, what cannot have changed unnoticed may be passed
        over."""

    def entry(self, slot: SlotId) -> E | None:
        return self._slots.get(slot)

    def slot_of(self, adapter: AdapterKey) -> SlotId:
        """Raises SlotIntegrity where no slot holds it."""
        for slot, entry in self._slots.items():
            if entry.adapter == adapter:
                return slot
        raise SlotIntegrity(f"no slot holds adapter {adapter}")

    def unload(self, slot: SlotId) -> None:
        self._slots.pop(slot, None)
        self._verified_at.pop(slot, None)

    def verify(self, slot: SlotId, step: int) -> None:
        """Reads the slot's bytes again and compares, once a step at most. Raises SlotIntegrity and unpublishes the slot
        where they changed."""
        entry = self._slots.get(slot)
        if entry is None:
            raise SlotIntegrity(f"slot {slot} is empty")
        if self._verified_at.get(slot) == step:
            return
        if not self._intact(entry, whole=False):
            self.unload(slot)
            raise _changed(slot, entry)
        self._verified_at[slot] = step

    def audit(self) -> None:
        """As ``check_integrity``, but for the bytes of one slot, another each time: a few milliseconds, so that a
        request which comes meanwhile hardly waits."""
        self._check_places()
        slots = sorted(self._slots)
        if slots:
            self._audited = next((slot for slot in slots if slot > self._audited), slots[0])
            self._check_bytes(self._audited)

    def check_integrity(self) -> None:
        """Every slot's bytes, and no memory in two slots. Raises SlotIntegrity."""
        self._check_places()
        for slot in self._slots:
            self._check_bytes(slot)

    def _publish(self, slot: SlotId, entry: E, step: int) -> None:
        """Its bytes were read and compared in this step."""
        self._slots[slot] = entry
        self._verified_at[slot] = step

    def _check_places(self) -> None:
        seen: dict[int, SlotId] = {}
        for slot, entry in self._slots.items():
            for place in self._places(entry):
                if seen.setdefault(place, slot) != slot:
                    raise SlotIntegrity(f"{self._place} {place} belongs to slots {seen[place]} and {slot}")

    def _check_bytes(self, slot: SlotId) -> None:
        entry = self._slots[slot]
        if not self._intact(entry, whole=True):
            raise _changed(slot, entry)


def _changed(slot: SlotId, entry: Held) -> SlotIntegrity:
    return SlotIntegrity(f"slot {slot}: its bytes are no longer those of adapter {entry.adapter}")


__all__ = ["Held", "SlotTable"]
