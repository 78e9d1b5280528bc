"""What waits and why, asked of the admin service, over the wire to a real engine: each reason that it has is made to
happen, one step at a time, on a tiny random model."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lorry.adapters.manifest import AdapterRef
from lorry.api.v1 import fleet_pb2 as pb
from lorry.config import MemoryConfig, SchedulerConfig
from lorry.engine.contract import EngineRequest
from lorry.engine.parts import build_parts
from lorry.engine.transport_client import GrpcEngineClient
from lorry.engine.views import QueueView
from lorry.errors import EngineUnavailable
from lorry.ids import AdapterKey, RequestId, TenantId
from lorry.models.weights import read_spec
from lorry.registry.fleet.desk import CalledAs, HeldRequest, RecentRequests
from lorry.request import SamplingParams, StoppingParams
from lorry.residency.host import Fetching, HostState
from lorry.scheduler.queue import Waiting
from lorry.scheduler.reasons import WaitReason
from lorry_admin.live import reason_of
from tests.integration.admin.live_world import Asked, Operators, Stepper, operators, over_the_wire
from tests.support.adapters import FolderHost, save_adapter
from tests.support.engines import engine_config, local_engine
from tests.support.tiny_base import write_tiny_base

MEMORY = MemoryConfig(budget_bytes=4 << 20, page_tokens=16, chunk_rank=8, max_slots=4, max_rank=16)
SCHEDULER = SchedulerConfig(max_sequences=8, token_budget=64, prefill_chunk_tokens=64, context_tokens=256)


class SlowHost(FolderHost[Any]):
    """Versions in ``held`` are on their way for as long as they are in it."""

    held: set[AdapterKey]

    def ensure(self, ref: AdapterRef) -> HostState:
        return Fetching() if ref.key in self.held else super().ensure(ref)


@dataclass
class Bench:
    here: Operators
    wire: GrpcEngineClient
    asked: Asked
    stepper: Stepper
    host: SlowHost
    refs: list[AdapterRef]
    base: Any
    clock: list[float]

    async def send(self, name: str, adapter: int | None = None, *, prompt: int = 4, out: int = 60, **more: Any) -> None:
        tenant = await self.here.tenant(more.pop("tenant", "acme"))
        request = EngineRequest(
            RequestId(name),
            tenant,
            tuple(3 + i % 40 for i in range(prompt)),
            None if adapter is None else self.refs[adapter],
            self.base,
            SamplingParams(temperature=0.0),
            StoppingParams(max_tokens=out, ignore_eos=True),
        )
        await self.asked.send(replace(request, **more))

    async def reasons(self) -> dict[str, str]:
        """By the request, and its choice where that is not the first; the sums agree."""
        found = await self.here.admin.list_waiting_requests()
        assert found.total == len(found.requests) == sum(one.count for one in found.sums)
        sums = Counter((one.tenant, one.reason) for one in found.requests)
        assert sums == {(one.tenant, one.reason): one.count for one in found.sums}
        return {
            f"{one.request_id}/{one.choice}" if one.choice else one.request_id: _word(one.reason)
            for one in found.requests
        }


def _word(reason: pb.WaitReason.ValueType) -> str:
    return pb.WaitReason.Name(reason).removeprefix("WAIT_REASON_").lower()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    root = tmp_path_factory.mktemp("tiny")
    model = write_tiny_base(root / "base")
    folders = []
    for seed, rank in enumerate((8, 8, 8, 16, 16)):
        save_adapter(model, root / f"a{seed}", seed=seed, r=rank)
        (root / f"a{seed}" / "README.md").unlink()
        folders.append(root / f"a{seed}")
    return root / "base", folders


@asynccontextmanager
async def bench(
    here: Operators, built: tuple[Path, list[Path]], folder: Path, memory: MemoryConfig, scheduler: SchedulerConfig
) -> AsyncIterator[Bench]:
    folder.mkdir()
    base, folders = built
    config = engine_config(base, memory=memory, scheduler=scheduler)
    host = SlowHost(read_spec(base), base)
    host.held = set()
    refs = [host.add(one, f"ad_{at}") for at, one in enumerate(folders)]
    parts = build_parts(config, host)
    clock = [0.0]
    parts.scheduler._clock = lambda: clock[0]
    engine = local_engine(parts, host)
    stepper = Stepper(parts, engine)
    async with over_the_wire(engine, folder) as wire:
        here.engines.put(wire)
        base_digest = (await wire.info()).base
        async with Asked(wire) as asked:
            yield Bench(here, wire, asked, stepper, host, refs, base_digest, clock)
            found = await here.admin.list_engine_memory()
            pages = found.engines[0].pages
            assert pages.used + pages.promised + pages.cached + pages.pending + pages.free == pages.total
    await engine.close()


async def _arrived(one: Bench) -> dict[str, str]:
    await one.send("a")
    return {"a": "arrived"}


async def _loads(one: Bench) -> dict[str, str]:
    one.host.held.add(one.refs[0].key)
    await one.send("a", 0)
    await one.stepper.step()
    return {"a": "adapter_load"}


async def _full(one: Bench) -> dict[str, str]:
    for name in "abc":
        await one.send(name, tenant="acme" if name != "c" else "beta")
    await one.stepper.step(2)
    return {"b": "batch_full"}  # tenants take turns


async def _tokens(one: Bench) -> dict[str, str]:
    for name in "abc":
        await one.send(name, prompt=4)
    await one.stepper.step()
    return {"c": "token_budget"}


async def _pages(one: Bench) -> dict[str, str]:
    """As many as the arena has pages for."""
    total = (await one.wire.memory()).pages["total"]
    count = total // (256 // 16) + 1
    for at in range(count):
        await one.send(f"r{at}", prompt=4, out=252)
    await one.stepper.step(count)
    return {f"r{count - 1}": "kv_pages"}


async def _slots(one: Bench) -> dict[str, str]:
    for at, name in enumerate("abc"):
        await one.send(name, at)
    await one.stepper.step(2)
    return {"c": "adapter_slots"}


async def _starves(one: Bench) -> dict[str, str]:
    for at, name in enumerate("ab"):
        await one.send(name, at)
    await one.stepper.step()
    await one.send("c", 2)
    await one.stepper.step()
    one.clock[0] += 5.0
    await one.stepper.step()
    await one.send("d", 0, tenant="beta")
    await one.stepper.step(2)
    return {"c": "adapter_slots", "d": "starving_first"}


async def _turn(one: Bench) -> dict[str, str]:
    total = (await one.wire.memory()).pages["total"]
    running = total // (256 // 16)
    for at in range(running + 12):
        await one.send(f"r{at}", prompt=4, out=252)
    await one.stepper.step(running)
    return {f"r{running + at}": "kv_pages" if at < 9 else "turn" for at in range(12)}


async def _choices(one: Bench) -> dict[str, str]:
    await one.send("a", prompt=40, n=3)
    await one.stepper.step()
    return {"a/1": "first_choice", "a/2": "first_choice"}


TIGHT = replace(SCHEDULER, max_sequences=64, overcommit=False)
SCENARIOS: dict[str, tuple[Any, MemoryConfig, SchedulerConfig]] = {
    "arrived": (_arrived, MEMORY, SCHEDULER),
    "adapter_load": (_loads, MEMORY, SCHEDULER),
    "batch_full": (_full, MEMORY, replace(SCHEDULER, max_sequences=2)),
    "token_budget": (_tokens, MEMORY, replace(SCHEDULER, max_sequences=8, token_budget=8, prefill_chunk_tokens=8)),
    "kv_pages": (_pages, replace(MEMORY, budget_bytes=2 << 20), TIGHT),
    "adapter_slots": (_slots, replace(MEMORY, max_slots=2), SCHEDULER),
    "starving_first": (_starves, replace(MEMORY, max_slots=2), SCHEDULER),
    "turn": (_turn, replace(MEMORY, budget_bytes=2 << 20), TIGHT),
    "first_choice": (_choices, MEMORY, replace(SCHEDULER, token_budget=16, prefill_chunk_tokens=16)),
}


async def test_every_reason_of_an_engine_over_the_wire(
    built: tuple[Path, list[Path]], sqlite_url: str, tmp_path: Path
) -> None:
    seen: set[str] = set()
    async with operators(sqlite_url, tmp_path) as here:
        for name, (make, memory, scheduler) in SCENARIOS.items():
            async with bench(here, built, tmp_path / name, memory, scheduler) as one:
                expected = await make(one)
                found = await one.reasons()
                assert found == expected, name
                assert name in expected.values()
                seen |= set(expected.values())
                queue = await one.wire.queue()
                assert (await one.here.admin.list_waiting_requests()).running == queue.running
    assert seen >= set(SCENARIOS)


async def test_turns_by_weight_over_the_wire(built: tuple[Path, list[Path]], sqlite_url: str, tmp_path: Path) -> None:
    """Three to one while both wait, of requests as a gateway sends them; a new weight holds for what waits already."""
    seats = replace(SCHEDULER, max_sequences=4)
    async with operators(sqlite_url, tmp_path) as here, bench(here, built, tmp_path / "one", MEMORY, seats) as one:
        for at in range(24):
            await one.send(f"h{at}", out=1, tenant="heavy", weight=3)
            await one.send(f"l{at}", at % 3, out=1, tenant="light")

        async def served() -> tuple[int, int]:
            found = await one.wire.queue()
            left = Counter(waiting.tenant for waiting in found.waiting)
            return 24 - left[here.tenants["heavy"]], 24 - left[here.tenants["light"]]

        for plan in range(1, 6):
            await one.stepper.step()
            assert await served() == (3 * plan, plan)
        await one.send("new", out=1, tenant="light", weight=3)
        before = await served()
        await one.stepper.step(4)
        after = await served()
        assert [b - a for a, b in zip(before, after, strict=True)] == [8, 8]


class OneDesk:
    """A gateway with one request at its quota, and one in its engine."""

    def __init__(self, tenant: TenantId) -> None:
        self.recent = RecentRequests()
        self.tenant = tenant

    def held(self) -> list[HeldRequest]:
        return [HeldRequest("mine-1", self.tenant, "v", None, WaitReason.QUOTA_CONCURRENCY, 3.0, 7)]

    def called(self) -> dict[RequestId, CalledAs]:
        return {RequestId("0123"): CalledAs("mine-2", "tenants/acme/adapters/a/versions/3")}


async def test_a_gateways_own_and_the_clients_ids(sqlite_url: str, tmp_path: Path) -> None:
    desk = OneDesk(TenantId("none"))
    async with operators(sqlite_url, tmp_path, desk) as here:
        tenant = desk.tenant = await here.tenant("acme")
        engine: Any = _Queued(tenant)
        here.engines.put(engine, _Silent())  # type: ignore[arg-type]  # what is asked of them here
        found = await here.admin.list_waiting_requests(1)
        assert (found.total, len(found.requests), found.silent_engines) == (2, 1, 1)
        (first,) = found.requests
        assert (first.request_id, first.replica, _word(first.reason)) == ("mine-2", "e0", "kv_pages")
        assert first.version == "tenants/acme/adapters/a/versions/3"
        rest = (await here.admin.list_waiting_requests()).requests[1]
        assert (rest.request_id, rest.tenant, _word(rest.reason)) == ("mine-1", "tenants/acme", "quota_concurrency")


class _Queued:
    def __init__(self, tenant: TenantId) -> None:
        waiting = Waiting(RequestId("0123"), tenant, None, 0, 9.0, WaitReason.KV_PAGES, 0, 0, 5)
        self._view = QueueView(1, 8, (waiting,), {(tenant, WaitReason.KV_PAGES): 1})

    async def info(self) -> Any:
        return type("Info", (), {"replica": "e0"})

    async def queue(self) -> QueueView:
        return self._view


class _Silent:
    async def info(self) -> Any:
        raise EngineUnavailable("gone")

    async def queue(self) -> QueueView:
        return QueueView()


def test_each_reason_has_a_number_on_the_wire_and_none_has_two() -> None:
    numbers = {reason_of(reason) for reason in WaitReason}
    assert len(numbers) == len(WaitReason)
    assert numbers | {pb.WAIT_REASON_UNSPECIFIED} == set(pb.WaitReason.values())
