"""Who did what to a tenant: appended in the change's transaction, chained by hashes, verified on demand.

The promise: whoever edits, removes, inserts or reorders events, or cuts off the newest, is found by ``verify``. Whoever
can write the whole database can also write a whole new chain; only a hash that was noted elsewhere finds that.
"""

from lorry.registry.audit.appending import append

__all__ = ["append"]
