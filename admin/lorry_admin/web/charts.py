"""Charts as geometry: what a template writes down as SVG, with classes for colours and a table of the same numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 480.0, 176.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 8.0, 10.0, 26.0
LABELS_MAX = 7


@dataclass(frozen=True, slots=True)
class Series:
    """``style``: a class of the style sheet. One value for each label; None is a gap."""

    name: str
    style: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """``path`` is an SVG path; ``dots`` are (x, y, title)."""

    style: str
    path: str
    dots: Sequence[tuple[float, float, str]]


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """``empty``: no value is above 0, so there is nothing to draw."""

    id: str
    title: str
    unit: str
    labels: Sequence[str]
    series: Sequence[Series]
    shown: Callable[[float | None], str]
    bars: Sequence[Bar]
    lines: Sequence[Line]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    empty: bool
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    floor: float = HEIGHT - BOTTOM


def bars(
    chart_id: str,
    title: str,
    unit: str,
    labels: Sequence[str],
    series: Sequence[Series],
    shown: Callable[[float | None], str],
) -> Chart:
    """Stacked, the first series at the bottom."""
    sums = [sum(one.values[i] or 0.0 for one in series) for i in range(len(labels))]
    top = _ceiling(max(sums, default=0.0))
    place = _places(len(labels))
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    width = min(48.0, max(2.0, slot * 0.72))
    made: list[Bar] = []
    for i, label in enumerate(labels):
        below = 0.0
        for one in series:
            value = one.values[i] or 0.0
            if value <= 0:
                continue
            y, height = _y(below + value, top), _y(below, top) - _y(below + value, top)
            made.append(
                Bar(
                    round(place(i) - width / 2, 1),
                    round(y, 1),
                    round(width, 1),
                    round(max(height, 1.0), 1),
                    one.style,
                    f"{label}: {one.name} {shown(value)}",
                )
            )
            below += value
    return _chart(chart_id, title, unit, labels, series, shown, made, (), top, max(sums, default=0.0) <= 0)


def lines(
    chart_id: str,
    title: str,
    unit: str,
    labels: Sequence[str],
    series: Sequence[Series],
    shown: Callable[[float | None], str],
) -> Chart:
    """From 0 up; a line ends at a gap."""
    highest = max((value for one in series for value in one.values if value is not None), default=0.0)
    top, place = _ceiling(highest), _places(len(labels))
    made = []
    for one in series:
        path, dots, pen = "", [], "M"
        for i, value in enumerate(one.values):
            if value is None:
                pen = "M"
                continue
            x, y = round(place(i), 1), round(_y(value, top), 1)
            path += f"{pen}{x} {y}"
            pen = "L"
            dots.append((x, y, f"{labels[i]}: {one.name} {shown(value)}"))
        made.append(Line(one.style, path, dots))
    return _chart(chart_id, title, unit, labels, series, shown, (), made, top, highest <= 0)


def _chart(
    chart_id: str,
    title: str,
    unit: str,
    labels: Sequence[str],
    series: Sequence[Series],
    shown: Callable[[float | None], str],
    made_bars: Sequence[Bar],
    made_lines: Sequence[Line],
    top: float,
    empty: bool,
) -> Chart:
    place = _places(len(labels))
    x_ticks = [Tick(round(place(i), 1), labels[i]) for i in _labelled(labels)]
    y_ticks = [Tick(round(_y(top * part, top), 1), shown(top * part)) for part in (0.0, 0.5, 1.0)]
    return Chart(chart_id, title, unit, labels, series, shown, made_bars, made_lines, x_ticks, y_ticks, empty)


def _labelled(labels: Sequence[str]) -> list[int]:
    """Those that are written below the axis: of minutes every tenth, else as many as there is room for."""
    tenths = [i for i, label in enumerate(labels) if label[2:3] == ":" and label.endswith("0")]
    if len(labels) > LABELS_MAX >= len(tenths) > 1:
        return tenths
    every = max(1, math.ceil(len(labels) / LABELS_MAX))
    return list(range(0, len(labels), every))


def _places(count: int) -> Callable[[int], float]:
    slot = (WIDTH - LEFT - RIGHT) / max(1, count)
    return lambda index: LEFT + slot * (index + 0.5)


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _ceiling(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten, twice of which is even: axes read well."""
    if value < sys.float_info.min:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 2, 4, 6, 8, 10) if unit * step >= value * 0.999999)


__all__ = ["Bar", "Chart", "Line", "Series", "Tick", "bars", "lines"]
