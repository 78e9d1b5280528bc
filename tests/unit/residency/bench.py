"""Residency over a ledger and a host tier in memory."""

from __future__ import annotations

from lorry.config import MemoryConfig
from lorry.ids import RequestId
from lorry.memory import MemoryLedger
from lorry.residency import Residency
from tests.unit.residency.memory_host import MemoryHost, Version, version

A, B, C = version("a"), version("b"), version("c")
R1, R2, R3 = RequestId("r1"), RequestId("r2"), RequestId("r3")


class Bench:
    """``slots`` slots and ``chunks`` chunks of rank 8, ranks up to 16; bytes for ``pages`` KV pages beside all chunks.
    A page and a chunk are of 100 bytes; ``extras`` bytes beside chunks, as far as the budget goes."""

    def __init__(
        self, *, slots: int = 2, chunks: int = 4, pages: int = 8, extras: int = 400, instant: bool = True
    ) -> None:
        chunks = min(chunks, slots * 2)
        total = pages + chunks
        config = MemoryConfig(
            budget_bytes=total * 100,
            adapter_fraction=(chunks + 0.5) / total,
            kv_fraction=0.0,
            extras_fraction=(extras + 0.5) / (total * 100),
            page_tokens=4,
            chunk_rank=8,
            max_slots=slots,
            max_rank=16,
        )
        self.ledger = MemoryLedger(config, 100, 100, 4)
        assert self.ledger.split.chunks == chunks
        self.host = MemoryHost(instant=instant)
        self.residency: Residency[Version] = Residency(self.ledger, self.host)

    def use(self, owner: RequestId, ref: Version, at_step: int = -1) -> None:
        """A request's whole life on the device."""
        self.residency.hold(owner, ref)
        assert self.residency.pin(owner) is not None
        self.residency.unpin(owner, at_step)
        self.residency.release(owner)
        self.residency.check_integrity()
