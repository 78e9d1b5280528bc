"""One byte budget for KV pages, adapter chunks and adapters' extras. No torch: the storage is the device's own."""

from lorry.memory.arena import IdArena
from lorry.memory.budget import MemorySplit, least_budget, split_budget
from lorry.memory.eviction import EvictionClock, RestoreCosts
from lorry.memory.grants import AdapterGrant, AdapterNeed, MemoryUse, PagePromise
from lorry.memory.ledger import MemoryLedger
from lorry.memory.pool import BytePool

__all__ = [
    "AdapterGrant",
    "AdapterNeed",
    "BytePool",
    "EvictionClock",
    "IdArena",
    "MemoryLedger",
    "MemorySplit",
    "MemoryUse",
    "PagePromise",
    "RestoreCosts",
    "least_budget",
    "split_budget",
]
