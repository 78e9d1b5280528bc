"""Identifier types. A plain ``str`` or ``int`` never crosses a package boundary as an identity."""

from typing import NamedTuple, NewType

TenantId = NewType("TenantId", str)
"""Opaque, immutable tenant identity (never the display name)."""

AdapterDigest = NewType("AdapterDigest", str)
"""SHA-256 over an adapter version's files, 64 lower-case hex digits. The identity of weights."""

AdapterScope = NewType("AdapterScope", str)
"""Whose copy of a version's bytes: the registry's id of the adapter that the version belongs to, never its name. Opaque
to an engine; never empty."""

BaseDigest = NewType("BaseDigest", str)
"""SHA-256 over a base model's weight files and config, 64 lower-case hex digits."""

RequestId = NewType("RequestId", str)
"""Chosen by the client or minted by the gateway; unique per engine while the request lives."""

SequenceId = NewType("SequenceId", int)
"""Engine-local, never reused within one engine process."""

PageId = NewType("PageId", int)
"""Index of a KV page in the device's KV arena, 0 <= id < pages."""

ChunkId = NewType("ChunkId", int)
"""Index of an adapter page (``chunk_rank`` rank rows of every site) in the device's adapter arena."""

SlotId = NewType("SlotId", int)
"""Row of the slot table. -1 is the base model."""

Generation = NewType("Generation", int)
"""Counts how often a slot was filled; a batch row carries (slot, generation)."""

BASE_SLOT = SlotId(-1)


class AdapterKey(NamedTuple):
    """One adapter's version in an engine: everything that is kept or known of it there is kept under this, from the
    disk to the device's slot. Adapters with equal bytes have copies of their own, so that nobody learns from a copy
    being there, or not, what others have. A digest alone says what bytes are, never whose copy is meant.

    As text it is the digest: messages about it reach all who may use the adapter.
    """

    digest: AdapterDigest
    scope: AdapterScope

    def __str__(self) -> str:
        return self.digest


__all__ = [
    "BASE_SLOT",
    "AdapterDigest",
    "AdapterKey",
    "AdapterScope",
    "BaseDigest",
    "ChunkId",
    "Generation",
    "PageId",
    "RequestId",
    "SequenceId",
    "SlotId",
    "TenantId",
]
