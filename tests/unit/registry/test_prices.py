"""Prices by day, and what usage costs by them: exact."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal, getcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry import errors
from lorry.registry import DayUse, PageRequest, Price, cost
from lorry.registry.db.base import utcnow
from lorry.registry.prices.costs import from_micros, parse_price, price_on, price_text, to_micros
from lorry.registry.prices.service import day_of
from tests.unit.registry.conftest import World
from tests.unit.registry.test_migrations import _accepted, _refused

ALL = PageRequest.of(0, "")
DAY = date(2026, 11, 1)
MICROS = st.integers(0, 10**12)
TOKENS = st.integers(0, 10**15)
DAYS = st.integers(-3, 12).map(lambda days: DAY + timedelta(days=days))


def price(day: date, prompt: str, cached: str, output: str, currency: str = "EUR") -> Price:
    return Price(day, currency, Decimal(prompt), Decimal(cached), Decimal(output))


def test_a_bill_by_hand() -> None:
    prices = [price(DAY, "0.15", "0.05", "0.6"), price(DAY + timedelta(days=2), "1", "1", "2")]
    days = [
        DayUse(DAY - timedelta(days=1), 5_000_000, 0, 5_000_000),  # before the first price
        DayUse(DAY, 3_000_000, 1_000_000, 500_000),  # 0.30 + 0.05 + 0.30
        DayUse(DAY + timedelta(days=1), 1, 0, 0),  # 0.00000015
        DayUse(DAY + timedelta(days=9), 1_000_000, 1_000_000, 1),  # 1 + 0.000002
    ]
    assert cost(days, prices) == Decimal("1.65000215")
    assert cost(days, list(reversed(prices))) == cost(days, prices)
    assert cost([], prices) == cost(days, []) == 0
    assert price_on(DAY + timedelta(days=1), prices) == prices[0]
    assert price_on(DAY - timedelta(days=1), prices) is None
    with pytest.raises(ValueError, match="EUR and USD"):
        cost(days, [*prices, price(DAY, "1", "1", "1", "USD")])


@given(
    st.lists(st.tuples(DAYS, MICROS, MICROS, MICROS), max_size=6, unique_by=lambda row: row[0]),
    st.lists(st.tuples(DAYS, TOKENS, st.integers(0, 1000), TOKENS), max_size=8),
)
def test_costs_are_exact(rows: list[tuple[date, int, int, int]], used: list[tuple[date, int, int, int]]) -> None:
    """Against fractions, whatever the context's precision is."""
    prices = [Price(day, "EUR", *map(from_micros, micros)) for day, *micros in rows]
    days = [DayUse(day, prompt, prompt * cached // 1000, output) for day, prompt, cached, output in used]
    wanted = Fraction(0)
    for one in days:
        before = [row for row in rows if row[0] <= one.day]
        if before:
            _, prompt, cached, output = max(before)
            wanted += Fraction(
                (one.prompt_tokens - one.cached_prompt_tokens) * prompt
                + one.cached_prompt_tokens * cached
                + one.output_tokens * output,
                10**12,
            )
    assert Fraction(cost(days, prices)) == wanted
    assert sum(Fraction(cost([one], prices)) for one in days) == wanted
    assert getcontext().prec == 28


@given(MICROS)
def test_a_price_survives_its_text_and_its_row(micros: int) -> None:
    value = from_micros(micros)
    assert parse_price("prompt", price_text(value)) == value
    assert to_micros(value) == micros


@pytest.mark.parametrize(
    "text", ["", ".", "-1", "1e3", "nan", "1,5", " 1", "1 ", "0.1234567", "1000001", "٣", "9" * 30]
)
def test_what_is_no_price(text: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="prompt"):
        parse_price("prompt", text)


def test_days_begin_at_midnight_utc() -> None:
    assert day_of("t", datetime.fromisoformat("2026-11-01T02:00:00+02:00")) == DAY
    assert day_of("t", None) == utcnow().date()
    for text in ("2026-11-01T00:00:00+02:00", "2026-11-01T00:00:00.000001+00:00"):
        with pytest.raises(errors.InvalidRequest, match="beginning"):
            day_of("t", datetime.fromisoformat(text))


async def test_prices_are_set_replaced_and_listed(world: World) -> None:
    prices, admin = world.registry.prices, world.admin
    await world.registry.tenants.create(admin, "acme")
    await world.registry.tenants.create(admin, "bert")
    owner = await world.caller("acme")
    first, later = price(DAY, "0.15", "0.05", "0.6"), price(DAY + timedelta(days=30), "0.2", "0.2", "0.7")
    for made in (later, first):
        assert await prices.set(admin, "acme", made) == made
    assert await prices.set(admin, "acme", first) == first
    assert list((await prices.list(owner, "acme", ALL)).rows) == [later, first]
    page = await prices.list(owner, "acme", PageRequest.of(1, ""))
    rest = await prices.list(owner, "acme", PageRequest.of(1, page.next_token))
    assert [*page.rows, *rest.rows] == [later, first]
    assert rest.next_token == ""
    newer = price(DAY, "0.000001", "0", "1000000")
    await prices.set(admin, "acme", newer)
    assert list((await prices.list(owner, "acme", ALL)).rows) == [later, newer]
    events = [row for row in (await world.registry.audit.list(owner, "acme", ALL)).rows if row.action == "price.set"]
    assert [(row.subject, row.details["prompt"]) for row in events] == [
        ("tenants/acme/prices/2026-11-01", "0.000001"),
        ("tenants/acme/prices/2026-11-01", "0.15"),
        ("tenants/acme/prices/2026-12-01", "0.2"),
    ]
    with pytest.raises(errors.FailedPrecondition, match="EUR"):
        await prices.set(admin, "acme", price(DAY, "1", "1", "1", "USD"))
    await prices.set(admin, "bert", price(DAY, "1", "1", "1", "USD"))
    await prices.set(admin, "bert", price(DAY, "1", "1", "1", "CHF"))  # its only one
    for currency in ("", "eur", "EURO", "E1R"):
        with pytest.raises(errors.InvalidRequest, match="currency"):
            await prices.set(admin, "acme", price(DAY, "1", "1", "1", currency))
    with pytest.raises(errors.RoleTooLow):
        await prices.set(owner, "acme", first)
    with pytest.raises(errors.ResourceNotFound):
        await prices.list(owner, "bert", ALL)
    with pytest.raises(errors.InvalidRequest, match="page_token"):
        await prices.list(owner, "acme", PageRequest(1, "x"))


ROW = (
    "INSERT INTO price (tenant_id, effective_on, currency, prompt_micros, cached_micros, output_micros, created_at,"
    " created_by) SELECT id, '2026-11-0{0}', '{1}', {2}, '2026-01-01 00:00:00+00', 'k' FROM tenant"
)


async def test_what_a_price_can_be(world: World) -> None:
    for day, currency, micros in (
        (1, "EU", "1, 1, 1"),
        (1, "eur", "1, 1, 1"),
        (1, "EUR", "-1, 1, 1"),
        (1, "EUR", "1, -1, 1"),
        (1, "EUR", "1, 1, -1"),
        (1, "EUR", "1, 1, 1000000000001"),
    ):
        await _refused(world, ROW.format(day, currency, micros))
    await _accepted(world, ROW.format(1, "EUR", "0, 1, 1000000000000"))
    with pytest.raises(errors.StaleEtag):
        await _accepted(world, ROW.format(1, "EUR", "1, 1, 1"))
