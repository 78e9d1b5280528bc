"""A month's tokens under any history of gateways that take, spend, settle, lose their line, die and start again.

What the registry has as spent is the ledger, to the token. And what all requests together use of a month is within the
stated bound: the highest limit that there was, and what expired leases had been granted and the ledger did not know of.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from lorry.errors import Unavailable
from lorry.gateway.limits.tokens import Reservation
from lorry.registry import PageRequest, Registry
from lorry.registry.bootstrap import _first_admin
from lorry.registry.leases.months import month_of
from lorry.registry.leases.terms import CLOCKS_S, LEASE_S
from lorry.registry.limits.service import QuotaService
from tests.unit.gateway.limits.bank import Bank, Gateway
from tests.unit.registry.conftest import NOW, PEPPERS

GATEWAYS = st.integers(0, 2)
COUNTER = itertools.count()


@dataclass(eq=False)
class Running:
    gateway: Gateway
    reservation: Reservation
    tokens: int
    month: str


class Model(RuleBasedStateMachine):
    url: str
    limit = 1000

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.runner.run(self.open())
        self.running: list[Running] = []
        self.used: dict[str, int] = {}
        """By month: all tokens of requests that were billed, in the ledger or in a spool."""
        self.kept: dict[str, int] = {}
        """By month: tokens in the ledger."""
        self.lost: dict[str, int] = {}
        self.spools: list[list[Any]] = []
        """Of gateways that died: they come with the next start."""
        self.highest = self.limit

    async def open(self) -> None:
        self.registry = Registry(self.url, PEPPERS)
        key = await _first_admin(self.registry.database, PEPPERS) or Model.key
        Model.key = key
        admin = (await self.registry.snapshots().start()).authenticate(key, NOW)
        self.bank = await Bank.of(self.registry, admin, f"t{next(COUNTER)}", self.limit)
        self.gateways = [self.bank.gateway(self.limit) for _ in range(3)]

    key = ""

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    async def look(self) -> None:
        """Before somebody comes by: what it will free of expired leases may still be used by those that hold them."""
        for month, tokens in (await self.bank.lapsing()).items():
            self.lost[month] = self.lost.get(month, 0) + tokens

    async def exchange(self, gateway: Gateway, renewing: bool) -> None:
        if gateway.line.lost != "before" and (renewing or gateway.tokens._due):
            await self.look()
        await gateway.tokens.round(renewing)

    @rule(at=GATEWAYS, tokens=st.integers(1, 400))
    def begin(self, at: int, tokens: int) -> None:
        self.run(self._begin(self.gateways[at], tokens))

    async def _begin(self, gateway: Gateway, tokens: int) -> None:
        month = month_of(self.bank.now)
        found = gateway.tokens.reserve([gateway.budget], tokens)
        if found is None:
            waits = asyncio.create_task(gateway.tokens.wait([gateway.budget], tokens, 30.0))
            await asyncio.sleep(0)
            await self.exchange(gateway, renewing=False)
            try:
                found = await waits
            except Unavailable:
                found = None
        if found is not None:
            self.running.append(Running(gateway, found[0], tokens, month))

    @rule(pick=st.integers(0, 99), share=st.integers(0, 4))
    def end(self, pick: int, share: int) -> None:
        if self.running:
            one = self.running.pop(pick % len(self.running))
            used = one.tokens * share // 4
            one.reservation.settle(used)
            charge = one.reservation.charge
            assert charge is not None
            assert charge.month == one.month
            if used:
                one.gateway.spool.append(self.bank.row(used, (charge,)))
                self.used[one.month] = self.used.get(one.month, 0) + used

    @rule(at=GATEWAYS)
    def renew(self, at: int) -> None:
        self.run(self.exchange(self.gateways[at], renewing=True))

    @rule(at=GATEWAYS, twice=st.booleans())
    def drain(self, at: int, twice: bool) -> None:
        spool = list(self.gateways[at].spool)
        self.run(self.gateways[at].drain())
        if twice:  # its mark was not written
            self.run(self.registry.usage.write(spool))
        self._came(spool)

    def _came(self, rows: list[Any]) -> None:
        for row in rows:
            (charge,) = row.charges
            self.kept[charge.month] = self.kept.get(charge.month, 0) + row.output_tokens

    @rule(at=GATEWAYS, lost=st.sampled_from([None, None, "before", "after"]))
    def line(self, at: int, lost: str | None) -> None:
        self.gateways[at].line.lost = lost

    @rule(at=GATEWAYS)
    def die(self, at: int) -> None:
        """Its requests end without a bill; its spool lies on its disk."""
        old = self.gateways[at]
        self.spools.append(old.spool)
        self.running = [one for one in self.running if one.gateway is not old]
        self.gateways[at] = self.bank.gateway(old.budget.limit)

    @rule()
    def start_again(self) -> None:
        if self.spools:
            spool = self.spools.pop()
            self.run(self.registry.usage.write(spool))
            self._came(spool)

    @rule(at=GATEWAYS)
    def leave(self, at: int) -> None:
        """As a drain: its requests have ended."""
        gateway = self.gateways[at]
        for mine in [one for one in self.running if one.gateway is gateway]:
            self.end(self.running.index(mine), 3)
        self.run(gateway.tokens.close())
        self.spools.append(gateway.spool)
        self.gateways[at] = self.bank.gateway(gateway.budget.limit)

    @rule(seconds=st.sampled_from([1.0, 5.0, LEASE_S, LEASE_S + CLOCKS_S, 60.0]))
    def wait(self, seconds: float) -> None:
        self.bank.now += seconds

    @rule()
    def next_month(self) -> None:
        self.bank.now += 31 * 86400.0

    @rule(limit=st.integers(0, 1500), told=st.booleans())
    def change(self, limit: int, told: bool) -> None:
        self.highest = max(self.highest, limit)
        self.run(self.bank.limit(limit))
        if told:
            for gateway in self.gateways:
                gateway.budget.change(limit)

    @invariant()
    def the_registry_knows_the_ledger(self) -> None:
        found = self.run(self.bank.known())
        assert {month: spent for month, spent in found.items() if spent} == {k: v for k, v in self.kept.items() if v}

    @invariant()
    def nothing_is_exceeded_beyond_the_bound(self) -> None:
        lost = dict(self.lost)
        for month, tokens in self.run(self.bank.lapsing()).items():
            lost[month] = lost.get(month, 0) + tokens
        total = dict(self.used)
        for one in self.running:
            total[one.month] = total.get(one.month, 0) + one.tokens
        for month, tokens in total.items():
            assert tokens <= self.highest + lost.get(month, 0), (month, tokens, self.highest, lost)

    def teardown(self) -> None:
        """When every gateway is gone and its spool came, everything is spent or free."""
        for at in range(3):
            self.die(at)
        self.bank.now += LEASE_S + CLOCKS_S
        while self.spools:
            self.start_again()
        self.the_registry_knows_the_ledger()
        view = self.run(self._use())
        assert view == (self.kept.get(month_of(self.bank.now), 0), 0)
        self.run(self.registry.close())
        self.runner.close()

    async def _use(self) -> tuple[int, int]:
        quotas = QuotaService(self.registry.database, lambda: self.bank.now)
        (view,) = (await quotas.list(self.bank.admin, self.bank.tenant.tenant_name, PageRequest.of(0, ""))).rows
        assert view.use is not None
        return view.use.used, view.use.leased


@pytest.mark.timeout(300)
def test_any_history_keeps_the_bound(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # lines are lost all the time
    machine = type("Here", (Model,), {"url": url})
    Model.key = ""
    run_state_machine_as_test(  # type: ignore[no-untyped-call, unused-ignore]  # hypothesis's own
        machine,
        settings=settings(
            max_examples=15 if url.startswith("sqlite") else 8,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
