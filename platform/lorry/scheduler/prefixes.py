"""What of a sequence enters the prefix index, and under which keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic

from lorry.errors import InternalError
from lorry.ids import AdapterKey
from lorry.kvcache import BlockTables, PrefixIndex, PrefixKey, block_hash, root_hash
from lorry.residency.host import R
from lorry.scheduler.entry import Entry
from lorry.scheduler.running import NEVER, Running

PrefixKeyOf = Callable[[AdapterKey | None, bytes, str, str], PrefixKey]
"""Completes (adapter, tenant salt, cache scope, owner) with what the engine knows of its base."""


class Prefixes(Generic[R]):
    """Keys at a request's arrival, pages published as they fill.

    A page is published only after its step ended without a fault, so what a damaged slot computed in a step that
    showed it is never found.
    """

    def __init__(self, index: PrefixIndex, tables: BlockTables, key_of: PrefixKeyOf | None, *, enabled: bool) -> None:
        """``key_of`` None: nothing is cached, and choices of one request do not share pages."""
        self._index = index
        self._tables = tables
        self._key_of = key_of
        self._enabled = enabled

    def open(self, entry: Entry[R]) -> None:
        """Keys of a request that carries a salt."""
        request = entry.request
        if self._enabled and request.cache_salt:
            self._root(entry, request.cache_salt, request.cache_scope, "")

    def follow(self, leader: Entry[R], entry: Entry[R]) -> None:
        """Keys of a further choice. Without a salt they are the request's own, and the first choice gets them too."""
        if leader.root is None and leader.run is None:
            self._root(leader, b"", "", f"{leader.request.request_id}#{leader.arrival}")
            leader.private = leader.root is not None
        entry.root, entry.private = leader.root, leader.private
        entry.keys = leader.keys[: self._full(entry)]

    def publish(self, running: Running[R], end: int) -> None:
        """Positions before ``end`` are computed: the full pages among them that are not published yet."""
        entry, page = running.entry, self._tables.page_tokens
        while running.publish_at <= end:
            number = len(running.blocks)
            keys = entry.keys
            if number == len(keys):
                parent = keys[-1] if keys else entry.root
                if parent is None:
                    raise InternalError(f"sequence {running.sequence} publishes pages although it has no key")
                keys.append(block_hash(parent, running.ids(number * page, (number + 1) * page)))
            held = self._tables.pages(running.sequence)[number]
            before = running.blocks[-1] if running.blocks else None
            block = self._index.publish(keys[number], before, held, running.adapter)
            if block is None:
                running.publish_at = NEVER
                return
            if block.page != held:
                self._tables.replace(running.sequence, number, block.page, running.last_step)
                running.table = self._tables.pages(running.sequence)
            running.blocks.append(block)
            running.publish_at += page

    def leave(self, running: Running[R], *, ended: bool) -> None:
        """The sequence was preempted, or has ended."""
        self._index.release(running.blocks, running.last_step, forget=ended and running.entry.private)
        running.blocks = []

    def _root(self, entry: Entry[R], salt: bytes, scope: str, owner: str) -> None:
        if self._key_of is None:
            return
        key = self._key_of(entry.adapter, salt, scope, owner)
        if own := entry.request.tokenizer_sha256:
            key = replace(key, tokenizer_sha256=own)
        entry.root = root_hash(key)
        page, prompt, parent = self._tables.page_tokens, entry.request.prompt, entry.root
        for number in range(self._full(entry)):
            parent = block_hash(parent, prompt[number * page : (number + 1) * page])
            entry.keys.append(parent)

    def _full(self, entry: Entry[R]) -> int:
        return len(entry.request.prompt) // self._tables.page_tokens


__all__ = ["PrefixKeyOf", "Prefixes"]
