"""Sums by any dimensions are the ledger's, page by page; exports are whole, in order, and harmless to open."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import random
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from lorry.errors import InvalidRequest, ResourceNotFound, RoleTooLow
from lorry.registry import Caller
from lorry.registry.usage import export, reports
from lorry.registry.usage.export import COLUMNS, Format, cell, chunks
from lorry.registry.usage.queries import Dimension, Query, UsageSum
from lorry.registry.usage.service import Usage
from tests.unit.registry.conftest import NOW, World
from tests.unit.registry.usages import NOON, usage

DAY = timedelta(days=1)
START, END = NOON - 10 * DAY, NOON + 10 * DAY
PARTS: dict[Dimension, Any] = {
    Dimension.DAY: lambda row: f"{row.ended_at:%Y-%m-%d}T00:00:00Z",
    Dimension.HOUR: lambda row: f"{row.ended_at:%Y-%m-%dT%H}:00:00Z",
    Dimension.MODEL: lambda row: row.adapter,
    Dimension.VERSION: lambda row: row.version,
    Dimension.KEY: lambda row: row.key_id,
    Dimension.OUTCOME: lambda row: row.outcome,
}
SETS = [
    *(kinds for size in range(3) for kinds in itertools.permutations(PARTS, size) if set(kinds) != {"day", "hour"}),
    (Dimension.OUTCOME, Dimension.DAY, Dimension.MODEL),
    tuple(one for one in PARTS if one is not Dimension.DAY),
]


async def filled(world: World, count: int = 60) -> list[Usage]:
    """Rows over three days and a foreign tenant's, of equal times now and then."""
    draw = random.Random(7)
    rows = [
        usage(
            world.admin.tenant,
            number,
            adapter=f"tenants/platform/adapters/{draw.choice('abc')}",
            version=draw.randint(1, 3),
            key_id=draw.choice(["k1", "k2"]),
            outcome=draw.choice(["OK", "CANCELLED"]),
            ended_at=NOON + timedelta(hours=draw.randint(-30, 30), minutes=draw.randint(0, 3)),
            ttft_s=draw.choice([None, 0.01, 0.3]),
        )
        for number in range(count)
    ]
    other = (await world.registry.tenants.create(world.admin, "bert")).id
    await world.registry.usage.write([*rows, usage(other, 999)])
    return rows


async def all_pages(world: World, size: int, dimensions: tuple[Dimension, ...]) -> list[UsageSum]:
    found: list[UsageSum] = []
    token = ""
    while True:
        page = await world.registry.usage_reports.query(world.admin, "platform", START, END, dimensions, size, token)
        assert len(page.rows) <= size
        found += page.rows
        token = page.next_token
        if not token:
            return found


async def test_sums_by_every_combination_page_by_page(world: World) -> None:
    rows = await filled(world)
    for at, dimensions in enumerate(SETS):
        wanted: dict[Any, Counter[str]] = {}
        for row in rows:
            sums = wanted.setdefault(tuple(PARTS[one](row) for one in dimensions), Counter())
            sums.update(requests=1, output_tokens=row.output_tokens, ttft=row.ttft_s is not None)
        found = await all_pages(world, 3 + at % 5, dimensions)
        assert [one.group for one in found] == sorted(wanted), dimensions
        for one in found:
            sums = wanted[one.group]
            assert (one.sums.requests, one.sums.output_tokens) == (sums["requests"], sums["output_tokens"])
            assert sum(one.sums.duration) == one.sums.requests
            assert sum(one.sums.ttft) == sums["ttft"]


async def test_the_hour_of_the_start_counts_and_that_of_the_end_does_not(world: World) -> None:
    minute = timedelta(minutes=1)
    rows = [usage(world.admin.tenant, i, ended_at=NOON + at) for i, at in enumerate((-minute, 0 * minute, 59 * minute))]
    rows.append(usage(world.admin.tenant, 9, ended_at=NOON + 61 * minute))
    await world.registry.usage.write(rows)
    query = world.registry.usage_reports.query
    (found,) = (await query(world.admin, "platform", NOON + 30 * minute, NOON + 90 * minute)).rows
    assert (found.group, found.sums.requests) == ((), 2)
    assert (await query(world.admin, "platform", NOON + DAY, NOON + 2 * DAY)).rows == []


@pytest.mark.parametrize(
    ("field", "start", "end", "dimensions"),
    [
        ("start_time", None, NOON, ()),
        ("end_time", NOON, None, ()),
        ("end_time", NOON, NOON, ()),
        ("end_time", NOON + timedelta(minutes=1), NOON + timedelta(minutes=59), ()),
        ("end_time", NOON, NOON + 400 * DAY + timedelta(hours=1), ()),
        ("group_by", NOON, NOON + DAY, (Dimension.KEY, Dimension.KEY)),
        ("group_by", NOON, NOON + DAY, (Dimension.DAY, Dimension.HOUR)),
    ],
)
def test_what_cannot_be_asked(
    field: str, start: datetime | None, end: datetime | None, dimensions: tuple[Dimension, ...]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Query.of(start, end, dimensions, 10, "")
    assert [violation.field for violation in caught.value.violations] == [field]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"[]",
        b'["a"]',
        b'["a", "b", 1]',
        b'["2026-01-01T00:00:00Z", "1"]',
        b'["x", 1]',
        b"[" * 3000,
        b"{}",
        b'["2026-01-01T00:00:00Z", -1]',
        b'["2026-01-01T00:00:00Z", 1.5]',
        b'["2026-01-01T00:00:00Z", 99999999999]',
    ],
)
def test_page_tokens_that_are_none(content: bytes) -> None:
    token = base64.urlsafe_b64encode(content).decode() or "%"
    with pytest.raises(InvalidRequest) as caught:
        Query.of(START, END, (Dimension.HOUR, Dimension.VERSION), 1, token)
    assert caught.value.violations[0].field == "page_token"


async def exported(world: World, form: Format, start: datetime | None = None, end: datetime | None = None) -> bytes:
    pieces = [one async for one in world.registry.usage_reports.export(world.admin, "platform", start, end, form)]
    assert pieces
    assert all(one.endswith(b"\n") for one in pieces if one)
    return b"".join(pieces)


async def test_an_export_is_whole_and_in_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = await filled(world)
    wanted = [row.ledger_id for row in sorted(rows, key=lambda row: (row.ended_at, row.ledger_id))]
    for page in (7, 60, 1000):
        monkeypatch.setattr(reports, "PAGE", page)
        lines = (await exported(world, Format.JSONL)).splitlines()
        assert [json.loads(line)["ledger_id"] for line in lines] == wanted
        table = list(csv.DictReader(io.StringIO((await exported(world, Format.CSV)).decode(), newline="")))
        assert [line["ledger_id"] for line in table] == wanted
        assert tuple(table[0]) == COLUMNS
    inside = [row for row in rows if NOON <= row.ended_at < NOON + timedelta(hours=5)]
    lines = (await exported(world, Format.JSONL, NOON, NOON + timedelta(hours=5))).splitlines()
    assert sorted(json.loads(line)["ledger_id"] for line in lines) == sorted(row.ledger_id for row in inside)


async def test_an_export_without_rows_is_one_piece(world: World) -> None:
    assert await exported(world, Format.JSONL) == b""
    assert await exported(world, Format.CSV) == ",".join(COLUMNS).encode() + b"\r\n"


HOSTILE = {
    "request_id": '-2+3+cmd|" /C calc"!A0',
    "principal": "=HYPERLINK(1)",
    "alias": "@SUM(1)",
    "outcome": "+1",
    "labels": {"a": '=1,"\r\n x', "b": "é"},
}


async def test_no_cell_is_a_formula_and_all_of_them_are_read_back(world: World) -> None:
    await world.registry.usage.write([usage(world.admin.tenant, 3, **HOSTILE)])
    text = (await exported(world, Format.CSV)).decode()
    assert text.count("\r\n") == 2, "labels are JSON, whose line breaks are escaped"
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert not [value for value in row.values() if value[:1] in tuple("=+-@\t\r")]
    for name in ("request_id", "principal", "alias", "outcome"):
        assert row[name] == f"'{HOSTILE[name]}"
    assert json.loads(row["labels"]) == HOSTILE["labels"]
    (line,) = (await exported(world, Format.JSONL)).splitlines()
    told = json.loads(line)
    assert {name: told[name] for name in HOSTILE} == HOSTILE, "JSON has no formulas and keeps them as they are"
    assert (told["ttft_seconds"], told["queue_seconds"], told["ended_at"]) == (
        0.012,
        None,
        "2026-11-02T12:03:00.000000Z",
    )


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\ta", "\ra", "'a", "'=1"])
def test_a_cell_is_read_back_by_taking_one_quote_off(text: str) -> None:
    assert cell(text) == f"'{text}"


def test_other_cells_are_as_they_are() -> None:
    cells = [cell(value) for value in ("a=1", "", None, True, False, -1.5, 3, {"b": "=", "a": 1})]
    assert cells == ["a=1", "", "", "true", "false", "-1.5", "3", '{"b":"=","a":1}']


def test_pieces_are_whole_lines_within_their_limit() -> None:
    lines = [b"x" * size + b"\n" for size in (1, 3, 5, 99, 2, 2, 2)]
    pieces = list(chunks(lines, 10))
    assert b"".join(pieces) == b"".join(lines)
    assert [len(piece) for piece in pieces] == [6, 6, 100, 9]
    assert export.CHUNK_BYTES == 256 * 1024


async def test_a_large_export_comes_in_pieces_within_their_limit(world: World) -> None:
    labels = {f"k{i}": "é" * 128 for i in range(16)}
    await world.registry.usage.write([usage(world.admin.tenant, i, labels=labels) for i in range(150)])
    for form in Format:
        pieces = [one async for one in world.registry.usage_reports.export(world.admin, "platform", None, None, form)]
        assert len(pieces) > 1
        assert max(map(len, pieces)) <= 256 * 1024


async def test_who_may_read(world: World) -> None:
    for name in ("anna", "bert"):
        await world.registry.tenants.create(world.admin, name)
    keys = [await world.key(*who) for who in (("anna",), ("anna", "member"), ("bert",))]
    snapshot = await world.source.refresh()
    owner, member, stranger = (snapshot.authenticate(key, NOW) for key in keys)

    async def query(caller: Caller, name: str) -> None:
        await world.registry.usage_reports.query(caller, name, START, END)

    async def export(caller: Caller, name: str) -> None:
        async for _ in world.registry.usage_reports.export(caller, name, None, None, Format.CSV):
            pass

    for method in (query, export):
        for caller in (owner, world.admin):
            await method(caller, "anna")
        with pytest.raises(RoleTooLow):
            await method(member, "anna")
        for caller, name in ((stranger, "anna"), (owner, "nobody"), (owner, "platform")):
            with pytest.raises(ResourceNotFound):
                await method(caller, name)
