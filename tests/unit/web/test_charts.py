"""Charts stay within their frame, whatever the numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.errors import InvalidRequest
from lorry_admin.web import charts, formats
from lorry_admin.web.charts import HEIGHT, WIDTH, Series
from lorry_admin.web.periods import PERIODS, period_of, span_of

VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1e12)), min_size=1, max_size=31)


@given(VALUES)
def test_bars(values: list[float | None]) -> None:
    labels = [str(i) for i in range(len(values))]
    made = charts.bars("x", "X", "x", labels, [Series("a", "c1", values), Series("b", "c2", values)], str)
    assert made.empty == (not any(values))
    for bar in made.bars:
        assert 0 <= bar.x <= bar.x + bar.width <= WIDTH
        assert 0 <= bar.y <= bar.y + bar.height <= HEIGHT + 1
    assert len(made.x_ticks) <= charts.LABELS_MAX + 1


@given(VALUES)
def test_lines_have_gaps_where_nothing_is_known(values: list[float | None]) -> None:
    labels = [str(i) for i in range(len(values))]
    (line,) = charts.lines("x", "X", "x", labels, [Series("a", "c1", values)], str).lines
    known = [value for value in values if value is not None]
    assert len(line.dots) == len(known) == len(re.findall("[ML]", line.path))
    runs = sum(v is not None and (i == 0 or values[i - 1] is None) for i, v in enumerate(values))
    assert line.path.count("M") == runs
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y, _ in line.dots)


@pytest.mark.parametrize("period", PERIODS)
@pytest.mark.parametrize("now", [datetime(2026, 3, 1, 0, 0, tzinfo=UTC), datetime(2026, 11, 30, 23, 59, tzinfo=UTC)])
def test_spans_hold_what_they_say(period: object, now: datetime) -> None:
    found = span_of(period, now.timestamp())  # type: ignore[arg-type]  # one of PERIODS
    assert found.start == found.ticks[0]
    assert found.ticks[-1] <= now < found.end <= found.ticks[-1] + found.period.step
    assert (now - found.start).total_seconds() >= (found.period.hours - 24 * (found.period.by == "day")) * 3600


def test_a_period_that_is_none() -> None:
    assert period_of("").word == "24h"
    with pytest.raises(InvalidRequest, match="use one of 1h"):
        period_of("1y")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0004, "0.4 ms"), (0.25, "250 ms"), (1.5, "1.5 s"), (600, "10 min"), (None, "–")],
)
def test_seconds(value: float | None, text: str) -> None:
    assert formats.seconds(value) == text


def test_numbers_for_people() -> None:
    assert (formats.number(1234567), formats.short_number(1234567), formats.short_number(999.6)) == (
        "1,234,567", "1.23M", "1k",
    )  # fmt: skip
    assert (formats.size(512), formats.size(2048), formats.size(5 << 30)) == ("512 B", "2.0 KiB", "5.0 GiB")
    assert (formats.percent(1, 3), formats.percent(1, 0)) == ("33.3%", "–")
    assert formats.ago(100.0, 100.0) == "now"
    assert formats.ago(100.0, 400.0) == "5 min ago"
    assert formats.ago(8000.0, 800.0) == "in 2 h"
    assert formats.ago(None) == "never"


def test_an_hour_is_labelled_every_ten_minutes() -> None:
    labels = [f"{11 + (44 + i) // 60}:{(44 + i) % 60:02}" for i in range(61)]
    made = charts.bars("x", "X", "x", labels, [Series("a", "c1", [1.0] * 61)], str)
    assert [tick.text for tick in made.x_ticks] == ["11:50", "12:00", "12:10", "12:20", "12:30", "12:40"]
    hours = [f"{i:02}:00" for i in range(24)]
    assert len(charts.bars("x", "X", "x", hours, [Series("a", "c1", [1.0] * 24)], str).x_ticks) == 6
