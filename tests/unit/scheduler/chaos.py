"""Everything that can happen to a scheduler, in any order, against a device that checks all and a model of what each
request must get. Driven by hypothesis, and by a seeded generator for as many steps as one likes.

Three slots, four chunks, 3,000 bytes of extras (beside which not all chunks fit), 18 pages of 4 tokens and 4 running
sequences, over-commit on: every resource runs out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from zlib import crc32

from lorry.errors import (
    AdapterLoadFailed,
    AlreadyExists,
    InternalError,
    LorryError,
    NonFiniteLogits,
    ObjectStoreUnavailable,
    Overloaded,
    SlotIntegrity,
)
from lorry.ids import AdapterKey, RequestId, SequenceId, SlotId
from lorry.request import OutputParams, SamplingParams, StoppingParams
from lorry.scheduler import AgeingBound, NewSequence, SequenceUpdate, StepPlan
from tests.unit.residency.memory_host import Version, version
from tests.unit.scheduler.rig import EOS, Rig

SIZES = ((1, 0), (8, 0), (8, 0), (9, 0), (16, 0), (0, 1), (0, 3000), (8, 700), (16, 3000), (1, 40), (0, 0))
"""Rank and extra bytes: LoRA alone, IA3, an embedding alone, both."""
ADAPTERS = [version(f"a{i}", rank, extra_bytes) for i, (rank, extra_bytes) in enumerate(SIZES)]
ADAPTERS += [version(f"a{i}", *SIZES[i], scope="theirs") for i in (1, 7)]
"""The last have the bytes of others; what the device samples and what pages hold depends on whose they are, so that
nothing of the one can serve the other unseen."""
_SIZE_OF = {str(ref.key): (-(-ref.rank // 8), ref.extra_bytes) for ref in ADAPTERS}
STREAMS = [tuple((stream * 31 + i * 7) % 97 + 10 for i in range(40)) for stream in range(3)]
"""Prompts begin alike, so that prefixes are found."""
TENANTS = "xyz"


def token_of(new: NewSequence, adapter: AdapterKey | None, index: int) -> int:
    """What the device samples: it depends on prompt, adapter, choice and index, and on nothing else. The same in every
    process, so that what hypothesis finds in one fails in another: hashes of strings are not."""
    return hash((new.token_ids[: new.prompt_tokens], _number_of(adapter), new.choice, index)) % 23


@cache
def _number_of(adapter: AdapterKey | None) -> int:
    return crc32(repr(adapter).encode())


@dataclass
class Asked:
    """A request, and what has come for it."""

    prompt: tuple[int, ...]
    adapter: AdapterKey | None
    choice: int
    stopping: StoppingParams
    output: OutputParams
    realm: tuple[object, ...]
    tokens: list[int] = field(default_factory=list)
    logprobs: int = 0
    scored: list[int] = field(default_factory=list)

    def expected(self) -> list[int]:
        """Its printed tokens, were it alone in the world."""
        new = NewSequence(SequenceId(0), self.prompt, len(self.prompt), SamplingParams(), self.choice)
        stops = {*self.stopping.stop_token_ids, *(() if self.stopping.ignore_eos else (EOS,))}
        printed: list[int] = []
        for index in range(self.stopping.max_tokens):
            token = token_of(new, self.adapter, index)
            if token in stops and index >= self.stopping.min_tokens:
                break
            printed.append(token)
        return printed


class Chaos:
    """``step_limit`` is what teardown may take to end everything."""

    def __init__(self, *, overcommit: bool = True, slots: int = 3, chunks: int = 4) -> None:
        self._shape: dict[str, Any] = {"overcommit": overcommit, "slots": slots, "chunks": chunks}
        self.count = 0
        self.steps = 0
        self.ended: set[RequestId] = set()
        self.asked: dict[RequestId, Asked] = {}
        self.hits = 0
        self.preemptions = 0
        self.most_extras = 0
        self.restart()

    def restart(self) -> None:
        """The engine's process is another: what lived has ended, nothing is cached, ids start anew."""
        self.rig = Rig(
            pages=18,
            sequences=4,
            budget=12,
            chunk_tokens=6,
            context=48,
            queue=24,
            queue_per_tenant=12,
            max_rank=16,
            instant=False,
            long_share=0.25,
            ageing=AgeingBound(plans=6, seconds=0.2),
            token=token_of,
            extras=3000,
            extras_beside=1000,
            **self._shape,
        )
        self.flying: deque[StepPlan] = deque()
        self._blamed: dict[type[LorryError], set[AdapterKey | None]] = {}
        self.seen: dict[tuple[object, ...], dict[tuple[int, ...], set[RequestId]]] = {}
        self._preemptions_before = 0
        self.ended |= self.asked.keys()
        self.asked.clear()

    # -- what may happen ----------------------------------------------------------------------------

    def add(
        self,
        *,
        tenant: str = "x",
        ref: Version | None = None,
        stream: int = 0,
        prompt: int = 8,
        stopping: StoppingParams | None = None,
        n: int = 1,
        salted: bool = True,
        scope: str = "",
        priority: int = 0,
        weight: int = 1,
        output: OutputParams | None = None,
        deadline: float | None = None,
        queue: float | None = None,
        ttft: float | None = None,
    ) -> list[RequestId]:
        """All choices, or none."""
        self.count += 1
        stopping, output = stopping or StoppingParams(max_tokens=8), output or OutputParams()
        ids, salt = STREAMS[stream][:prompt], tenant.encode() if salted else b""
        key = None if ref is None else ref.key
        leader = RequestId(f"r{self.count}")
        realm = (key, salt, scope) if salt else (key, leader)
        made: list[RequestId] = []
        now = self.rig.now
        for choice in range(n):
            name = RequestId(leader if choice == 0 else f"{leader}.{choice}")
            try:
                self.rig.add(
                    name,
                    ref,
                    tenant=tenant,
                    ids=ids,
                    stopping=stopping,
                    deadline=None if deadline is None else now + deadline,
                    queue_deadline=None if queue is None else now + queue,
                    ttft_deadline=None if ttft is None else now + ttft,
                    priority=priority,
                    weight=weight,
                    output=output,
                    cache_salt=salt,
                    cache_scope=scope,
                    choice=choice,
                    after=leader if choice else None,
                )
            except (Overloaded, ObjectStoreUnavailable):
                for other in made:
                    self.rig.scheduler.abort(other)
                self.check()
                return []
            made.append(name)
            asked = self.asked[name] = Asked(ids, key, choice, stopping, output, realm)
            seen, whole = self.seen.setdefault(realm, {}), (*ids, *asked.expected())
            for stop in range(4, len(whole) + 1, 4):
                seen.setdefault(whole[:stop], set()).add(name)
        self.check()
        return made

    def twice(self, request: RequestId) -> None:
        """A live id is refused and nothing changes."""
        if request in self.asked:
            try:
                self.rig.add(request)
            except AlreadyExists:
                return
            raise AssertionError("a live request id was taken again")

    def stop_string(self, request: RequestId) -> None:
        if self.rig.scheduler.finish(request) is not None:
            self._end(request)

    def plan(self) -> StepPlan | None:
        """Make a plan, unless two are under way; nothing that one of them touches is used otherwise."""
        if len(self.flying) >= 2:
            return None
        plan = self.rig.scheduler.plan()
        if plan is None:
            self.check()
            return None
        assert plan.tokens <= 12
        assert len(plan.sequences) <= 4
        assert all(row.query_len <= 6 for row in plan.sequences)
        for before in self.flying:
            used = {page for row in before.sequences for page in row.block_table}
            assert used.isdisjoint(plan.idle_pages)
            assert {load.slot for load in plan.loads}.isdisjoint(row.slot for row in before.sequences)
            written = {page for row in before.sequences for page in row.block_table[row.shared_pages :]}
            fresh = {p for row in plan.sequences if row.start == 0 for p in row.block_table[row.shared_pages :]}
            assert fresh.isdisjoint(written), "a new sequence writes where a step under way still does"
        self.flying.append(plan)
        self.check()
        return plan

    def complete(self, fail: frozenset[SlotId] = frozenset(), faults: dict[SequenceId, str] | None = None) -> None:
        plan, faults = self.flying.popleft(), faults or {}
        result = self.rig.device.run(plan, fail_slots=fail, faults=faults)
        self.steps += 1
        self._blamed = {AdapterLoadFailed: {load.adapter for load in plan.loads if load.slot in fail}}
        for kind in (SlotIntegrity, NonFiniteLogits):
            self._blamed[kind] = {row.adapter for row in plan.sequences if faults.get(row.sequence) == kind.reason}
        before = self.rig.scheduler.state()["preemptions"]
        for update in self.rig.scheduler.complete(plan, result):
            self._take(update)
        self.preemptions += before - self._preemptions_before
        self._preemptions_before = before
        self.rig.now += 0.01
        self.check()
        self._blamed = {}

    def land_all(self) -> None:
        for key in list(self.rig.host.fetching):
            self.rig.host.land(key)

    # -- what must hold -----------------------------------------------------------------------------

    def check(self) -> None:
        scheduler = self.rig.scheduler
        scheduler.check_integrity()
        for request, error in scheduler.drain_events():
            self._check_blame(request, error)
            self._end(request)
        assert self.asked.keys() == {entry.request.request_id for entry in scheduler._live}
        state = scheduler.state()
        pins = sum(slot["pins"] for slot in state["slots"])
        assert pins == sum(r.adapter is not None for r in scheduler._batch), "pins only while running"
        self._check_memory(state)

    def _check_memory(self, state: dict[str, Any]) -> None:
        """The laws, by what the state says and what the adapters are."""
        split, floor = (
            self.rig.ledger.split,
            int(self.rig.ledger.config.kv_fraction * self.rig.ledger.config.budget_bytes),
        )
        found = [(slot["chunks"], slot["extra_bytes"]) for slot in state["slots"]]
        assert found == [_SIZE_OF[slot["digest"]] for slot in state["slots"]]
        pages, chunks, extras = state["pages"], state["chunks"], state["extras"]
        assert chunks["used"] == sum(size for size, _ in found)
        assert extras["used"] == sum(size for _, size in found)
        assert extras["used"] + extras["pending"] + extras["free"] == extras["cap"] == 3000
        adapters = (chunks["used"] + chunks["pending"]) * split.chunk_bytes + extras["used"] + extras["pending"]
        in_pages = (pages["used"] + pages["pending"] + pages["promised"]) * split.page_bytes
        assert state["bytes"]["adapters"] == adapters <= state["bytes"]["budget"] - floor
        assert state["bytes"]["used"] == adapters + in_pages <= state["bytes"]["budget"]
        assert state["bytes"]["backed"] <= state["bytes"]["budget"]
        self.most_extras = max(self.most_extras, extras["used"])

    def run_out(self, limit: int = 3000) -> None:
        """With fetches that succeed, everything that was admitted ends, and nothing is left behind."""
        for _ in range(limit):
            self.land_all()
            self.plan()
            if self.flying:
                self.complete()
            else:
                self.rig.now += 0.01
            self.check()
            if not self.rig.scheduler.has_work() and not self.flying:
                break
        assert not self.asked, f"these never end: {sorted(self.asked)}"
        assert self.rig.all_free()

    def _take(self, update: SequenceUpdate) -> None:
        asked = self.asked[update.request_id]
        asked.tokens.extend(update.tokens)
        asked.logprobs += len(update.logprobs)
        asked.scored.extend(score.token_id for score in update.prompt_logprobs)
        if asked.output.top_logprobs is not None and update.error is None:
            assert [score.token_id for score in update.logprobs] == list(update.tokens)
        if update.first is not None:
            wanted = asked.output.prompt_logprobs is not None and not asked.choice
            assert asked.scored == (list(asked.prompt[1:]) if wanted else []), "each once, in order, before the first"
        assert asked.tokens == asked.expected()[: len(asked.tokens)], "what it put out is what it would have alone"
        if update.finish is not None:
            assert update.error is None
            assert asked.tokens == asked.expected()
            assert (update.finish.matched_stop_id is None) == (update.finish.reason == "length")
            self._check_cached(update.request_id, asked, update.finish.cached_prompt_tokens)
        if update.error is not None:
            self._check_blame(update.request_id, update.error)
        if update.finish is not None or update.error is not None:
            self._end(update.request_id)

    def _check_blame(self, request: RequestId, error: LorryError) -> None:
        """Who ends by what the device did ends with the step in which it did that to its own adapter."""
        kind = type(error)
        if isinstance(error, (InternalError, AdapterLoadFailed)):
            assert self.asked[request].adapter in self._blamed.get(kind, ()), f"{request} ended by {kind}: {error}"

    def _check_cached(self, request: RequestId, asked: Asked, cached: int) -> None:
        """What was found was computed by another request of the same adapter, tenant and scope."""
        if asked.output.prompt_logprobs is not None and not asked.choice:
            assert cached == 0, "its prompt had to be computed"
        assert cached < len(asked.prompt)
        pages = -(-cached // 4)
        if pages:
            self.hits += 1
            assert self.seen[asked.realm][asked.prompt[: pages * 4]] - {request}

    def _end(self, request: RequestId) -> None:
        assert request not in self.ended, "a request ends once"
        self.ended.add(request)
        del self.asked[request]


__all__ = ["ADAPTERS", "TENANTS", "Asked", "Chaos", "token_of"]
