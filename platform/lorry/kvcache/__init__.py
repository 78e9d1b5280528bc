"""Block tables over KV pages, and the key that a cached prefix is known by. No torch."""

from lorry.kvcache.prefix import BlockHash, PrefixKey, RopeKey, block_hash
from lorry.kvcache.tables import BlockTables

__all__ = ["BlockHash", "BlockTables", "PrefixKey", "RopeKey", "block_hash"]
