"""Spans, times, tables and quantiles as people read and write them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

import pytest

from lorry.api.v1 import tenant_admin_pb2 as tenants
from lorry.cli.commands.parsing import pair
from lorry.cli.commands.records import quantile
from lorry.cli.output import print_table, printable
from lorry.cli.times import moment, moment_ahead, now, span


def test_spans() -> None:
    assert [span(text) for text in ("90", "90s", "15m", "24h", "30d")] == [90, 90, 900, 86400, 2592000]
    for text in ("", "s", "1w", "-1d", "1.5h", "9999999999s"):
        with pytest.raises(argparse.ArgumentTypeError, match="30d"):
            span(text)


def test_moments() -> None:
    assert moment("2026-11-01") == datetime(2026, 11, 1, tzinfo=UTC)
    assert moment("2026-11-01T10:00Z") == datetime(2026, 11, 1, 10, tzinfo=UTC)
    assert moment("2026-11-01T10:00+02:00") == datetime(2026, 11, 1, 8, tzinfo=UTC)
    assert abs(now() - moment("7d") - timedelta(days=7)) < timedelta(minutes=1)
    assert abs(moment_ahead("7d") - now() - timedelta(days=7)) < timedelta(minutes=1)
    assert moment_ahead("2027-01-01") == datetime(2027, 1, 1, tzinfo=UTC)
    with pytest.raises(argparse.ArgumentTypeError, match="2026-11-01"):
        moment("yesterday")


def test_pairs() -> None:
    assert pair("team=a=b") == ("team", "a=b")
    for text in ("team", "=a", ""):
        with pytest.raises(argparse.ArgumentTypeError):
            pair(text)


def test_tables_cut_nothing_and_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "long head"), [("x" * 200, 1), ("\x1b[2Jevil\n", 2)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a" + " " * 199 + "  long head"
    assert lines[1] == "x" * 200 + "  1"
    assert lines[2].startswith("?[2Jevil? ")
    assert printable("naïve ✓") == "naïve ✓"
    print_table(("a",), [])
    assert capsys.readouterr().out == "none\n"


def test_quantiles_are_the_bounds_of_their_buckets() -> None:
    def histogram(*counts: int) -> tenants.LatencyHistogram:
        return tenants.LatencyHistogram(bounds=[0.1, 1.0], counts=counts)

    assert quantile(histogram(0, 0, 0), 0.5) == "-"
    assert quantile(tenants.LatencyHistogram(), 0.5) == "-"
    assert quantile(histogram(1, 1, 0), 0.5) == "<=0.1 s"
    assert quantile(histogram(1, 1, 0), 0.95) == "<=1 s"
    assert quantile(histogram(1, 0, 1), 0.95) == ">1 s"
