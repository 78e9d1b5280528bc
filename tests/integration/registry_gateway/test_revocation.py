"""What the registry takes back, the gateway takes back: new calls are refused and live streams end, within a second."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from rich.progress import Progress

from lorry import errors
from lorry.registry import Caller, PageRequest, Registry, Snapshot, verify_tenant
from lorry.registry.adapters.lifecycle import LifecycleService
from lorry.registry.adapters.states import VersionStates
from lorry.registry.bootstrap import _first_admin
from lorry.registry.names import AdapterName
from lorry.registry.usage.export import Format
from lorry.registry.usage.queries import Dimension
from tests.integration.registry_gateway.world import Customer, World, ended, hang, world
from tests.support.results import RESULTS, keep_result
from tests.support.waiting import end, until
from tests.unit.registry.conftest import CHEAP, PEPPERS
from tests.unit.registry.usages import usage

KINDS = {
    "key": errors.Unauthenticated,
    "grant": errors.GrantRevoked,
    "tenant": errors.TenantSuspended,
    "version": errors.AdapterQuarantined,
    "adapter": errors.ModelNotFound,
}
WORD = "correct horse battery"
AT_ONCE = 8
"""Administrators at work: each waits for its turn at the database, which is no part of the lag."""


async def revoke(here: World, customer: Customer, kind: str) -> None:
    """Returns when it is committed."""
    registry, admin = here.registry, here.admin
    adapter = AdapterName("platform", customer.name)
    if kind == "key":
        await registry.keys.revoke(admin, customer.name, customer.key_id)
    elif kind == "grant":
        await registry.grants.revoke(admin, customer.name, customer.grant_id)
    elif kind == "tenant":
        await registry.tenants.update(admin, customer.name, ["suspended"], suspended=True)
    elif kind == "version":
        for number in (1, 2):
            version = AdapterName("platform", customer.name, version=number)
            await VersionStates(registry.database).quarantine(admin, version, "test")
    else:
        nobody: Any = None  # neither store nor engines have a part in a deletion
        lifecycle = LifecycleService(registry.database, nobody, nobody)
        await lifecycle.delete(admin, adapter)


async def lags(here: World, tries: int, progress: Progress) -> dict[str, list[float]]:
    """Seconds from each commit until the live stream of its try ended, and until a new call was refused."""
    hang(here.engine)
    making = progress.add_task("tenants", total=tries)
    customers = []
    for number in range(tries):
        customers.append(await here.customer(f"c{number}"))
        progress.advance(making)
    await here.caught_up()
    calls = [await here.begun(customer) for customer in customers]
    turns, found = asyncio.Semaphore(AT_ONCE), {"stream": [0.0] * tries, "call": [0.0] * tries}
    revoking = progress.add_task("revocations", total=tries)

    async def one(number: int, kind: str) -> None:
        customer, call = customers[number], calls[number]
        async with turns:
            await revoke(here, customer, kind)
        committed = time.perf_counter()
        error = await ended(call)
        found["stream"][number] = time.perf_counter() - committed
        assert type(error) is KINDS[kind], (kind, error)
        refusal = await here.look(customer)
        found["call"][number] = time.perf_counter() - committed
        assert type(refusal) is KINDS[kind], (kind, refusal)
        progress.advance(revoking)

    kinds = list(KINDS)
    await asyncio.gather(*(one(number, kinds[number % len(kinds)]) for number in range(tries)))
    assert here.gateway.counters.cut_streams == tries
    assert len(here.gateway.live) == 0
    return found


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    return {"tries": len(found["stream"]), "kinds": list(KINDS)} | {
        what: {
            "p50_s": round(ordered[len(ordered) // 2], 3),
            "p99_s": round(ordered[len(ordered) * 99 // 100], 3),
            "max_s": round(ordered[-1], 3),
        }
        for what, ordered in ((what, sorted(values)) for what, values in found.items())
    }


@asynccontextmanager
async def listener_killed(here: World, url: str) -> AsyncIterator[list[int]]:
    """Again and again, as soon as there is one; yields whom."""
    killed: list[int] = []

    async def kill() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
            while True:
                listener = here.source.listener
                if listener is not None and listener.pid not in (0, *killed[-1:]):
                    killed.append(listener.pid)
                    await other.execute("SELECT pg_terminate_backend(%s)", [killed[-1]])
                await asyncio.sleep(0.02)

    task = asyncio.create_task(kill())
    await until(lambda: bool(killed))
    yield killed
    await end(task)


async def test_everything_that_is_taken_back_cuts_and_refuses(url: str) -> None:
    async with world(url) as here:
        with Progress(disable=True) as progress:
            found = await lags(here, 10, progress)
    assert max(found["stream"]) < 5
    assert max(found["call"]) < 5


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_with_the_listener_killed_it_holds_within_five_seconds(url: str) -> None:
    async with world(url) as here, listener_killed(here, url) as killed:
        with Progress(disable=True) as progress:
            found = await lags(here, 5, progress)
        assert killed
    assert max(*found["stream"], *found["call"]) < 5


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("url", "kill"),
    [("sqlite", False), ("postgresql", False), ("postgresql", True)],
    indirect=["url"],
    ids=["sqlite", "postgresql", "listener_killed"],
)
async def test_two_hundred_at_once(url: str, kill: bool) -> None:
    async with world(url) as here:
        with Progress() as progress:
            if kill:
                async with listener_killed(here, url):
                    found = await lags(here, 200, progress)
            else:
                found = await lags(here, 200, progress)
    result = summary(found)
    name = "postgresql, its listener killed" if kill else url.partition(":")[0]
    path = Path(RESULTS / "revocation.json")
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    keep_result("revocation", kept | {name: result})
    for what in ("stream", "call"):
        assert result[what]["p99_s"] <= (5.0 if kill else 1.0)
        assert result[what]["max_s"] <= 5.0


async def test_a_key_that_expires_cuts_too(url: str) -> None:
    """Nothing changes in the registry when it does."""
    async with world(url) as here:
        hang(here.engine)
        customer = await here.customer("anna")
        later = datetime.now(UTC) + timedelta(hours=1)
        row, key = await here.registry.keys.create(here.admin, "anna", "short", "member", later)
        short = Customer("anna", key, row.id, customer.model, customer.grant_id)
        await here.caught_up()
        stays, goes = await here.begun(customer), await here.begun(short)
        here.ahead = 3601.0
        assert type(await ended(goes)) is errors.Unauthenticated
        assert type(await here.look(short)) is errors.Unauthenticated
        assert len(here.gateway.live) == 1
        stays.cancel()


async def test_whatever_ends_a_users_rights_cuts_its_streams_and_refuses_it(url: str) -> None:
    """By the change log, within the promise of revoked keys."""
    async with world(url) as here:
        hang(here.engine)
        anna = await here.customer("anna")
        accounts, admin = here.registry.accounts, here.admin
        await accounts.create(admin, "anna", "ann", "operator", WORD)
        await here.caught_up()
        ends: dict[str, Callable[[str, str], Awaitable[Any]]] = {
            "logout": lambda text, _: accounts.log_out(text),
            "end": lambda _, session_id: accounts.end_session(admin, session_id),
            "password": lambda *_: accounts.set_password(admin, "anna", "ann", WORD),
            "disabled": lambda *_: accounts.disable(admin, "anna", "ann"),
            "role": lambda *_: accounts.set_role(admin, "anna", "ann", "viewer"),
        }
        for kind, end_it in ends.items():
            now = time.time()
            text, session = await accounts.log_in("ann@anna", WORD, agent="", address="", now=now)
            user = Customer("anna", accounts.token(session, now), "", anna.model, anna.grant_id)
            call = await here.begun(user)
            await end_it(text, session.id)
            began = time.perf_counter()
            error = await ended(call)
            assert time.perf_counter() - began < 5, kind
            assert type(error) is (errors.RoleTooLow if kind == "role" else errors.Unauthenticated), kind
            refused = await here.look(user)
            assert (refused is None) if kind == "role" else type(refused) is errors.Unauthenticated, kind
            await accounts.enable(admin, "anna", "ann")
            await here.caught_up()
        assert here.source.full_loads == 1


async def test_a_users_requests_are_in_the_ledger_under_its_login(url: str) -> None:
    """No API key has that id: rows, sums and exports take it; no key was used."""
    registry = Registry(url, PEPPERS, CHEAP)
    await _first_admin(registry.database, PEPPERS)
    admin = _admin(await registry.snapshots().start())
    login, _ = await registry.accounts.create(admin, "platform", "root", "platform_admin", WORD)
    rows = [replace(usage(admin.tenant, number), key_id=login.actor) for number in range(3)]
    await registry.usage.write(rows)
    start, end = min(row.ended_at for row in rows), max(row.ended_at for row in rows) + timedelta(hours=1)
    page = await registry.usage_reports.query(admin, "platform", start, end, [Dimension.KEY])
    assert [(one.group, one.sums.requests) for one in page.rows] == [((login.actor,), 3)]
    file = [piece async for piece in registry.usage_reports.export(admin, "platform", start, end, Format.JSONL)]
    assert b"".join(file).count(f'"key":"{login.actor}"'.encode()) == 3
    assert all(key.use is None for key in (await registry.keys.list(admin, "platform", PageRequest.of(0, ""))).rows)
    await registry.close()


def _admin(snapshot: Snapshot) -> Caller:
    (key,) = snapshot.tables.keys.values()
    verified = verify_tenant(key, key.tenant)
    return Caller(verified, "platform", key.principal, key.role, key.key_id, True)


async def test_what_does_not_concern_a_stream_leaves_it_alone(url: str) -> None:
    async with world(url) as here:
        hang(here.engine)
        anna, bert = await here.customer("anna"), await here.customer("bert")
        _, second = await here.registry.keys.create(here.admin, "anna", "other", "member")
        await here.caught_up()
        call = await here.begun(anna)
        for kind in KINDS:
            await revoke(here, bert, kind)
        version = AdapterName("platform", "anna", version=1)  # it runs 2
        await VersionStates(here.registry.database).quarantine(here.admin, version, "test")
        await VersionStates(here.registry.database).deprecate(
            here.admin, AdapterName("platform", "anna", version=2), "old"
        )
        await here.caught_up()
        here.gateway.live.check()
        assert len(here.gateway.live) == 1
        assert here.gateway.counters.cut_streams == 0
        assert second
        call.cancel()
