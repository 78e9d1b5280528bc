"""A scheduler with its real parts, a host tier in memory, the checking device, and a clock that is set."""

from __future__ import annotations

from typing import Any

from lorry.config import MemoryConfig, SchedulerConfig
from lorry.errors import LorryError
from lorry.ids import AdapterKey, BaseDigest, RequestId, SequenceId, SlotId, TenantId
from lorry.kvcache import BlockTables, PrefixKey, RopeKey
from lorry.memory import MemoryLedger
from lorry.request import SamplingParams, StoppingParams
from lorry.residency import Residency
from lorry.scheduler import AgeingBound, ScheduledRequest, Scheduler, SequenceUpdate, StepPlan
from tests.unit.residency.memory_host import MemoryHost, Version
from tests.unit.scheduler.device import Device, TokenOf

PAGE_BYTES = CHUNK_BYTES = 1000
EOS = 2


def prefix_key(adapter: AdapterKey | None, salt: bytes, scope: str, owner: str) -> PrefixKey:
    base, rope = BaseDigest("b" * 64), RopeKey("default", 10000.0)
    return PrefixKey(base, "none", "c" * 64, "float32", (), rope, 4, "rig", adapter, salt, scope, owner)


class Rig:
    """``pages`` of 4 tokens, ``chunks`` of rank 8, ``slots``; one sequence holds at most ``context`` tokens. All
    adapters' extras have at most ``extras`` bytes, for which the budget is larger by ``extras_beside`` (by default as
    much)."""

    def __init__(
        self,
        *,
        pages: int = 64,
        chunks: int = 8,
        slots: int = 4,
        sequences: int = 4,
        budget: int = 64,
        chunk_tokens: int = 64,
        context: int = 64,
        queue: int = 1000,
        max_rank: int = 8,
        instant: bool = True,
        ageing: AgeingBound | None = None,
        token: TokenOf | None = None,
        overcommit: bool = False,
        prefix_cache: bool = True,
        queue_per_tenant: int = 1000,
        long_share: float = 1.0,
        extras: int = 0,
        extras_beside: int | None = None,
    ) -> None:
        chunks = min(chunks, slots * -(-max_rank // 8))  # the ledger gives no more than the slots can use
        total = (pages + chunks) * PAGE_BYTES + (extras if extras_beside is None else extras_beside)
        largest = -(-max_rank // 8)
        memory = MemoryConfig(
            budget_bytes=total,
            adapter_fraction=(chunks + 0.5) * CHUNK_BYTES / total,
            extras_fraction=(extras + 0.5) / total,
            page_tokens=4,
            chunk_rank=8,
            max_slots=slots,
            max_rank=max_rank,
            kv_fraction=0.0 if pages <= largest else (pages - 0.5) * PAGE_BYTES / total,
        )
        config = SchedulerConfig(
            sequences,
            budget,
            chunk_tokens,
            queue,
            queue_per_tenant,
            context,
            overcommit,
            prefix_cache,
            long_share,
        )
        self.now = 100.0
        self.ledger = MemoryLedger(memory, PAGE_BYTES, CHUNK_BYTES, context)
        self.tables = BlockTables(self.ledger)
        self.host = MemoryHost(instant=instant)
        self.residency: Residency[Version] = Residency(self.ledger, self.host)
        self.scheduler: Scheduler[Version] = Scheduler(
            config,
            self.ledger,
            self.tables,
            self.residency,
            lambda: self.now,
            eos_token_ids=(EOS,),
            ageing=ageing,
            prefix_key=prefix_key,
        )
        split = self.ledger.split
        assert not extras or split.extras_bytes == extras
        self.device = Device(4, split.pages, split.chunks, split)
        if token is not None:
            self.device.token = token
        self.updates: list[SequenceUpdate] = []
        self.events: list[tuple[RequestId, LorryError]] = []
        self.started: list[RequestId] = []
        self._names: dict[SequenceId, RequestId] = {}

    def add(
        self,
        name: str,
        ref: Version | None = None,
        *,
        tenant: str = "t",
        prompt: int = 4,
        stopping: StoppingParams | None = None,
        out: int = 4,
        deadline: float | None = None,
        queue_deadline: float | None = None,
        reject_cold: bool = False,
        ids: tuple[int, ...] | None = None,
        **more: Any,
    ) -> RequestId:
        request = ScheduledRequest(
            RequestId(name),
            TenantId(tenant),
            tuple(range(10, 10 + prompt)) if ids is None else ids,
            ref,
            SamplingParams(temperature=0.0),
            stopping or StoppingParams(max_tokens=out),
            deadline,
            queue_deadline,
            reject_cold,
            **more,
        )
        if ref is not None:
            self.device.images[ref.key] = ref
        self.scheduler.add(request)
        return request.request_id

    def step(
        self,
        *,
        seconds: float = 0.01,
        fail_slots: frozenset[SlotId] = frozenset(),
        faults: dict[SequenceId, str] | None = None,
    ) -> StepPlan | None:
        """Plan, run, complete, check. ``started`` keeps the order in which requests joined."""
        before = {r.request_id for r in self.scheduler._batch}
        plan = self.scheduler.plan()
        self.started.extend(r.request_id for r in self.scheduler._batch if r.request_id not in before)
        self.now += seconds
        if plan is not None:
            self.updates.extend(
                self.scheduler.complete(plan, self.device.run(plan, fail_slots=fail_slots, faults=faults))
            )
        self.events.extend(self.scheduler.drain_events())
        self.scheduler.check_integrity()
        return plan

    def run_out(self, limit: int = 1000) -> None:
        """Until nothing is left to do."""
        for _ in range(limit):
            if not self.scheduler.has_work():
                return
            self.step()
        raise AssertionError(f"work is left after {limit} steps: {self.scheduler.state()}")

    def of(self, name: str) -> list[SequenceUpdate]:
        return [u for u in self.updates if u.request_id == name]

    def error(self, name: str) -> LorryError | None:
        ended = [e for r, e in self.events if r == name] + [u.error for u in self.of(name) if u.error is not None]
        assert len(ended) <= 1, "a request ends once"
        return ended[0] if ended else None

    def all_free(self) -> bool:
        """Nothing is taken (but by the prefix index), promised, pinned or held."""
        use = self.ledger.use()
        return (
            use.pages_used == len(self.scheduler._index.pages()) == self.scheduler._index.evictable
            and use.pages_pending == 0
            and use.pages_promised == 0
            and not self.host.retained
            and all(s["pins"] == 0 and s["holds"] == 0 for s in self.residency.slots())
        )
