"""One byte budget for KV pages and adapter chunks. No torch: the storage behind it is the device's own."""

from lorry.memory.arena import IdArena
from lorry.memory.budget import MemorySplit, split_budget
from lorry.memory.eviction import EvictionClock, RestoreCosts
from lorry.memory.ledger import ChunkGrant, MemoryLedger, MemoryUse, PagePromise

__all__ = [
    "ChunkGrant",
    "EvictionClock",
    "IdArena",
    "MemoryLedger",
    "MemorySplit",
    "MemoryUse",
    "PagePromise",
    "RestoreCosts",
    "split_budget",
]
