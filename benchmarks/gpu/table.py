"""The one table at the end, in plain text: a bare machine has no rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu.log import Figure, Found

_HEAD = ("part", "what", "found", "times", "of", "wanted")


def summary(parts: Sequence[Found], good: bool) -> str:
    """In one line, so that nobody takes what was missed or not measured for what holds. ``good``: every part passed."""
    judged = [figure for part in parts for figure in part.figures if figure.wanted]
    early = [part.part for part in parts if part.state != "done"]
    words = ["every check holds" if good else "NOT EVERY CHECK HOLDS"]
    if judged:
        words.append(f"{sum(bool(figure.met) for figure in judged)} of {len(judged)} targets met")
    if early:
        words.append(f"not to its end: {', '.join(early)}")
    return ", ".join(words)


def table(parts: Sequence[Found]) -> str:
    """A line for each part's checks, for each check that fails, and for each figure."""
    rows: list[Sequence[str]] = []
    for part in parts:
        rows.extend(_part(part))
    return "\n".join(_aligned([_HEAD, *rows]))


def _part(part: Found) -> Iterable[Sequence[str]]:
    state = part.state.upper() if part.state != "done" else ""
    if part.checks or state:
        failed = len(part.failed)
        good = len(part.checks) - failed
        words = f"{failed} FAIL, {good} hold" if failed else f"{good} hold"
        within = f"{part.worst:.2f}" if part.checks else ""
        bound = "bound (worst)" if part.checks else ""
        yield (part.part, f"checks in {part.seconds:.0f} s", words if part.checks else "", within, bound, state)
    if part.problem:
        yield ("", part.problem[:90], "", "", "", "")
    for check in part.failed:
        yield ("", f"FAIL {check.what}: {check.problem}"[:110], "", "", "", "")
    for figure in part.figures:
        yield (part.part, figure.what, _number(figure), f"{figure.ratio:.3g}", figure.beside, _wanted(figure))


def _number(figure: Figure) -> str:
    return f"{figure.value:.4g} {figure.unit}"


def _wanted(figure: Figure) -> str:
    if not figure.wanted:
        return ""
    return f"{figure.wanted} {'met' if figure.met else 'MISSED'}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Long lines of one cell (problems) do not widen the columns."""
    spread = [row for row in rows if any(row[2:])]
    widths = [max((len(row[at]) for row in spread), default=0) for at in range(len(_HEAD))]
    for row in rows:
        if any(row[2:]):
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        else:
            yield f"{row[0]:{widths[0]}}  {row[1]}"


__all__ = ["summary", "table"]
