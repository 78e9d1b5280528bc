"""Block tables over KV pages, and the index of cached prefixes. No torch."""

from lorry.kvcache.index import Block, PrefixIndex
from lorry.kvcache.prefix import BlockHash, PrefixKey, RopeKey, block_hash, root_hash
from lorry.kvcache.tables import BlockTables

__all__ = [
    "Block",
    "BlockHash",
    "BlockTables",
    "PrefixIndex",
    "PrefixKey",
    "RopeKey",
    "block_hash",
    "root_hash",
]
