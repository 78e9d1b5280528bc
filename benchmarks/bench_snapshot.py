"""The gateway's snapshot at size: its full load, its memory, the time of a one-row delta, and of a request's checks.

    python benchmarks/bench_snapshot.py [--adapters 1000 100000] [--tenants 100 10000] [--url URL | --postgres]
                                        [--json PATH]

A registry of that many adapters (one version of two files, an alias, a grant to the owner and one to another tenant)
and tenants (one key each) is written with plain inserts, then read as a gateway does. ``--url`` is an empty database
for each size (``{size}`` in it is the number of adapters); ``--postgres`` starts a server of its own for the run, where
the machine has PostgreSQL's binaries; without either they are SQLite files in a scratch folder.

``load_s``: the first load; ``load_gap_ms``: the longest that the event loop did not turn meanwhile, beside 100 turns a
second. ``mib``: resident memory that the load added; ``collect_ms``: a full pass of Python's garbage collector with it
in memory. ``apply``: one new row put into the snapshot, of each kind; ``refresh``: a change committed, until the
snapshot has it, over the database; ``look``: the same where nothing changed; ``floor``: ``SELECT 1`` by the same way.
The three are taken in turns, ``RUNS`` times; a figure is the median of the runs' own, and ``refresh_of_floor`` the
median of the runs' ratios. ``check_us``: authenticate and resolve; ``hidden``: the same for a name that is
unknown, one never granted and a deleted one, in turns. ``of_smallest``: the ratio to the smallest size.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # no stubs installed
import psycopg
from reporting import keep, parser_of, quantile, show
from rich.progress import Progress
from sqlalchemy import Connection, insert, text

from lorry.adapters.manifest import AdapterFile, files_digest
from lorry.errors import ModelNotFound
from lorry.ids import TenantId
from lorry.registry import Peppers, Registry, Snapshot, SnapshotSource, migrate_sync
from lorry.registry.changes import Change, Kind, record
from lorry.registry.db.base import Model, utcnow
from lorry.registry.db.tables import (
    Adapter,
    AdapterFileRow,
    AdapterVersion,
    Alias,
    AliasRevision,
    ApiKey,
    BaseModel,
    Grant,
    Principal,
    Tenant,
)
from lorry.registry.entries import GrantEntry, PinEntry

PEPPERS = Peppers((b"p" * 32,))
CALLS = 1000
DELTAS = 200
RUNS = 5
ROWS = 500
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tenant_rows(tenants: int, keys: dict[int, str]) -> Iterator[list[tuple[type[Model], dict[str, Any]]]]:
    for n in range(tenants):
        key = PEPPERS.new_key()
        keys[n] = key.text
        yield [
            (Tenant, {"id": f"tn_{n:032x}", "name": f"tenant-{n}"}),
            (Principal, {"id": f"pr_{n:032x}", "tenant_id": f"tn_{n:032x}", "name": "owner", "role": "owner"}),
            (
                ApiKey,
                {
                    "id": key.key_id,
                    "tenant_id": f"tn_{n:032x}",
                    "principal_id": f"pr_{n:032x}",
                    "mac": key.mac,
                    "pepper_id": key.pepper_id,
                    "last_four": key.last_four,
                },
            ),
        ]


def adapter_rows(adapters: int, tenants: int) -> Iterator[list[tuple[type[Model], dict[str, Any]]]]:
    """Tenant n has the adapters whose number is n, modulo the tenants; the next tenant has a grant on each too."""
    for n in range(adapters):
        adapter, version, owner = f"ad_{n:032x}", f"av_{n:032x}", f"tn_{n % tenants:032x}"
        files = tuple(
            AdapterFile(path, 1000, sha(f"{n}{path}")) for path in ("adapter_config.json", "adapter_model.safetensors")
        )
        granted = (owner, f"tn_{(n + 1) % tenants:032x}")
        yield [
            (Adapter, {"id": adapter, "tenant_id": owner, "name": f"adapter-{n}", "last_version": 1}),
            (
                AdapterVersion,
                {
                    "id": version,
                    "adapter_id": adapter,
                    "number": 1,
                    "base_model_id": "bm_1",
                    "sha256": files_digest(files),
                    "prefix": f"versions/{files_digest(files)}",
                    "rank": 8,
                    "size_bytes": 2000,
                    "report": {},
                    "created_by": "bench",
                    "state": "READY",
                },
            ),
            *(
                (
                    AdapterFileRow,
                    {"version_id": version, "path": f.path, "size_bytes": f.size, "sha256": f.sha256},
                )
                for f in files
            ),
            (Alias, {"adapter_id": adapter, "name": "stable", "revision": 1}),
            (
                AliasRevision,
                {"adapter_id": adapter, "name": "stable", "revision": 1, "number": 1, "created_by": "bench"},
            ),
            *(
                (Grant, {"id": f"gr_{n:031x}{i}", "tenant_id": t, "adapter_id": adapter, "created_by": "bench"})
                for i, t in enumerate(granted)
            ),
        ]


async def fill(registry: Registry, adapters: int, tenants: int, done: Callable[[int], None]) -> dict[int, str]:
    """The keys' texts by tenant."""
    keys: dict[int, str] = {}
    base = {
        "id": "bm_1",
        "name": "tiny",
        "base_sha256": "b" * 64,
        "tokenizer_sha256": "c" * 64,
        "context_tokens": 256,
        "config": CONFIG,
    }
    async with registry.database.engine.begin() as connection:
        await connection.execute(insert(BaseModel), [base])
        for rows in (tenant_rows(tenants, keys), adapter_rows(adapters, tenants)):
            waiting: dict[type[Model], list[dict[str, Any]]] = {}
            for count, one in enumerate(rows, 1):
                for table, row in one:
                    waiting.setdefault(table, []).append(row)
                if count % ROWS == 0:
                    for table, values in waiting.items():
                        await connection.execute(insert(table), values)
                    waiting.clear()
                    done(ROWS)
            for table, values in waiting.items():
                await connection.execute(insert(table), values)
        await connection.execute(text("ANALYZE"))  # as either database does by itself in time
    return keys


async def longest_gap(stop: asyncio.Event) -> float:
    """Seconds beyond 10 ms between two turns of the event loop, at most."""
    longest, last = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0.01)
        now = time.perf_counter()
        longest, last = max(longest, now - last - 0.01), now
    return longest


async def load(source: SnapshotSource) -> dict[str, float]:
    gc.collect()
    before, began, stop = psutil.Process().memory_info().rss, time.perf_counter(), asyncio.Event()
    watch = asyncio.create_task(longest_gap(stop))
    await source.start()
    seconds = time.perf_counter() - began
    stop.set()
    gap = await watch
    added = psutil.Process().memory_info().rss - before
    began = time.perf_counter()
    gc.collect()
    return {
        "load_s": seconds,
        "load_gap_ms": gap * 1e3,
        "mib": added / (1 << 20),
        "collect_ms": (time.perf_counter() - began) * 1e3,
    }


def timed(call: Callable[[], object], scale: float) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * scale


def summary(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_p50": statistics.median(values), f"{name}_p99": quantile(values, 0.99), f"{name}_max": max(values)}


def apply(snapshot: Snapshot, deltas: int) -> dict[str, float]:
    """Milliseconds."""
    tables, found = snapshot.tables, []
    adapters = list(tables.adapters.values())[:deltas]
    keys, tenants = list(tables.keys.values())[:deltas], list(tables.tenants.values())[:deltas]
    for n in range(deltas):
        adapter, key, tenant = adapters[n % len(adapters)], keys[n % len(keys)], tenants[n % len(tenants)]
        owner = TenantId(adapter.tenant)
        rows: list[dict[str, Any]] = [
            {"adapters": [replace(adapter, aliases={})]},
            {"keys": [replace(key, revoked_at=1.0)]},
            {"tenants": [replace(tenant, suspended=True)]},
            {"grants": [GrantEntry(owner, adapter.id, 1.0)]},
            {"pins": [(owner, adapter.id, PinEntry(owner, adapter.id, 1))]},
        ]
        for row in rows:
            found.append(timed(partial(snapshot.replace, snapshot.epoch + 1, **row), 1e3))
    return summary("apply_ms", found)


async def refresh(registry: Registry, source: SnapshotSource, adapters: int, deltas: int) -> dict[str, float]:
    """Milliseconds from the commit. Adapters are deleted and undeleted."""
    runs = [
        await _refreshes(registry, source, adapters, range(run * deltas, (run + 1) * deltas)) for run in range(RUNS)
    ]
    of_floor = [run["refresh_ms_p99"] / run["floor_ms_p99"] for run in runs]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]} | {
        "refresh_of_floor_p99": statistics.median(of_floor)
    }


async def _refreshes(registry: Registry, source: SnapshotSource, adapters: int, changes: range) -> dict[str, float]:
    found: dict[str, list[float]] = {"refresh_ms": [], "look_ms": [], "floor_ms": []}
    for n in changes:
        async with registry.database.write() as session:
            row = await session.get_one(Adapter, f"ad_{n % adapters:032x}")
            row.deleted_at = utcnow() if row.deleted_at is None else None
            await record(session, Change(Kind.ADAPTER, row.id))
        floor = partial(registry.database.of_one_moment, nothing)
        for name, call in (("refresh_ms", source.refresh), ("look_ms", source.refresh), ("floor_ms", floor)):
            began = time.perf_counter()
            await call()
            found[name].append((time.perf_counter() - began) * 1e3)
    return {name: value for kind, values in found.items() for name, value in summary(kind, values).items()}


def nothing(connection: Connection) -> None:
    connection.execute(text("SELECT 1")).all()


def check(snapshot: Snapshot, keys: dict[int, str], adapters: int) -> dict[str, float]:
    """Microseconds."""
    tenants, now, found = len(keys), time.time(), []

    def once(n: int) -> None:
        owner = n % tenants
        caller = snapshot.authenticate(keys[owner], now)
        snapshot.resolve(caller, f"tenants/tenant-{owner}/adapters/adapter-{n}@stable", "", now, "user")

    for step in range(CALLS):
        n = step * 7919 % adapters
        found.append(timed(partial(once, n), 1e6))
    return summary("check_us", found)


def hidden(snapshot: Snapshot, keys: dict[int, str]) -> dict[str, float]:
    """Medians in microseconds, for tenant 0. Its own adapter 0 is deleted."""
    now, tables = time.time(), snapshot.tables
    caller = snapshot.authenticate(keys[0], now)
    gone = tables.adapters[f"ad_{0:032x}"]
    snapshot = snapshot.replace(snapshot.epoch + 1, adapters=[replace(gone, deleted=True)])
    names = {
        "unknown": "tenants/tenant-0/adapters/adapter-z",
        "never_granted": "tenants/tenant-2/adapters/adapter-2",
        "deleted": "tenants/tenant-0/adapters/adapter-0",
    }

    def once(name: str) -> None:
        try:
            snapshot.resolve(caller, name, "", now)
        except ModelNotFound:
            return
        raise AssertionError(f"{name} is visible")

    found: dict[str, list[float]] = {kind: [] for kind in names}
    for _ in range(CALLS):
        for kind, name in names.items():
            found[kind].append(timed(partial(once, name), 1e6))
    return {f"{kind}_us": statistics.median(values) for kind, values in found.items()}


async def measure(url: str, adapters: int, tenants: int, deltas: int, progress: Progress) -> dict[str, Any]:
    await asyncio.to_thread(migrate_sync, url)
    registry = Registry(url, PEPPERS)
    try:
        task = progress.add_task(f"{adapters} adapters: writing", total=adapters + tenants)
        keys = await fill(registry, adapters, tenants, lambda rows: progress.advance(task, rows))
        progress.update(task, description=f"{adapters} adapters: loading", total=None)
        source = registry.snapshots()
        result: dict[str, Any] = {"adapters": adapters, "tenants": tenants, **await load(source)}
        progress.update(task, description=f"{adapters} adapters: changes and calls")
        result |= check(source.current(), keys, adapters) | hidden(source.current(), keys)
        result |= apply(source.current(), deltas)
        result |= await refresh(registry, source, adapters, deltas)
        progress.update(task, description=f"{adapters} adapters: done", total=1, completed=1)
        return result
    finally:
        await registry.close()


def run(sizes: Sequence[tuple[int, int]], url: str | None = None, deltas: int = DELTAS) -> dict[str, Any]:
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, Progress(transient=True) as progress:
        for adapters, tenants in sizes:
            target = url.format(size=adapters) if url else f"sqlite:///{Path(scratch) / f'{adapters}.db'}"
            cells.append(asyncio.run(measure(target, adapters, tenants, deltas, progress)))
    smallest = cells[0]
    for cell in cells:
        cell["of_smallest"] = {
            name: cell[name] / smallest[name] for name in ("apply_ms_p50", "refresh_ms_p50", "check_us_p50")
        }
    return {"database": url.partition(":")[0] if url else "sqlite", "cells": cells}


@contextmanager
def scratch_postgres(sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    """The URL of empty databases, one for each size, on a server that is gone afterwards."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.unit.registry import postgres

    folder = postgres.binaries()
    if folder is None:
        raise SystemExit("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    with postgres.running(folder) as url:
        with psycopg.connect(url.format(name="postgres"), autocommit=True) as connection:
            for adapters, _ in sizes:
                connection.execute(f"CREATE DATABASE lorry_{adapters}".encode())
        yield url.format(name="lorry_{size}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--adapters", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--tenants", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own, for the run")
    parser.add_argument("--url", default=None, help="an empty database for each size, with {size} in its name")
    options = parser.parse_args()
    sizes = list(zip(options.adapters, options.tenants, strict=True))
    with scratch_postgres(sizes) if options.postgres else nullcontext(options.url) as url:
        result = run(sizes, url)
    columns = [name for name, value in result["cells"][0].items() if not isinstance(value, dict)]
    rows = ([name, *(cell[name] for cell in result["cells"])] for name in columns)
    show(f"snapshot on {result['database']}", ["", *(str(cell["adapters"]) for cell in result["cells"])], rows)
    keep(result, options.json)


if __name__ == "__main__":
    main()
