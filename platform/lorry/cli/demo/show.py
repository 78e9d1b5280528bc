"""The demo's tables, live and final, and its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from lorry.cli.demo.refusals import Refusal
from lorry.cli.demo.scenario import TENANTS
from lorry.cli.demo.streams import Call

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan")
_MODELS = sorted({model for tenant in TENANTS for model in tenant.models})


def _short(model: str) -> str:
    """The last part of an adapter's name; a base is just that."""
    return "(base)" if not model or model.startswith("models/") else model.rsplit("/", 1)[-1]


def live_table(calls: Sequence[Call]) -> Table:
    """What has come so far, the newest text of each call last."""
    table = Table(title="GenerateStream, all at once", expand=True, box=None, pad_edge=False)
    for name, width in (("tenant", 8), ("model", 10), ("digest", 12), ("state", 9)):
        table.add_column(name, width=width, no_wrap=True)
    table.add_column("text", ratio=1, no_wrap=True, overflow="ellipsis")
    for call in calls:
        tail = " ".join(call.text.split())[-90:]
        table.add_row(
            call.ask.tenant.name,
            Text(_short(call.ask.model), style=_colour(call)),
            call.sha256[:12] or ("base" if call.state in ("streaming", "done") else ""),
            call.state,
            tail,
        )
    return table


def figures_table(calls: Sequence[Call], title: str) -> Table:
    """One row a call, 80 columns wide. The digest is the engine's own statement; "mix" is the fewest and the most
    distinct adapters in a step that the call was part of."""
    table = Table(title=title, box=None, pad_edge=False)
    for name in ("tenant", "adapter", "v", "digest", "tier"):
        table.add_column(name, no_wrap=True)
    for name in ("queue ms", "TTFT ms", "tok/s", "mix"):
        table.add_column(name, no_wrap=True, justify="right")
    for call in calls:
        table.add_row(
            call.ask.tenant.name,
            Text(_short(call.adapter), style=_colour(call)),
            str(call.version) if call.version else "-",
            call.sha256[:10] or "-",
            call.tier or call.state,
            f"{call.queue_s * 1e3:.0f}",
            f"{call.ttft_s * 1e3:.0f}",
            f"{call.tokens_per_s:.1f}",
            f"{call.distinct[0]}-{call.distinct[1]}",
        )
    return table


def text_table(calls: Sequence[Call]) -> Table:
    """What each adapter made of the same questions."""
    table = Table(title="The texts", expand=True, show_lines=True)
    table.add_column("question", ratio=2)
    table.add_column("adapter", no_wrap=True)
    table.add_column("text", ratio=5)
    seen: set[tuple[str, str]] = set()
    for call in sorted(calls, key=lambda c: (c.ask.question, c.ask.model)):
        case = (call.ask.question, call.ask.model)
        if case not in seen:
            name = Text(_short(call.adapter), style=_colour(call))
            table.add_row(call.ask.question if not seen or case[0] not in {q for q, _ in seen} else "", name, call.text)
            seen.add(case)
    return table


def mix_table(distinct: Sequence[int]) -> Table:
    """Steps by how many distinct adapters (the base is one) their batch held."""
    table = Table(title="Distinct adapters in one batch, by step", box=None)
    table.add_column("adapters", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("")
    counts = Counter(distinct)
    most = max(counts.values(), default=1)
    for number in sorted(counts):
        table.add_row(str(number), str(counts[number]), "█" * max(1, round(40 * counts[number] / most)))
    return table


def refusal_table(refusals: Sequence[Refusal]) -> Table:
    table = Table(title="What is refused", expand=True)
    table.add_column("case", ratio=1)
    table.add_column("status", no_wrap=True)
    table.add_column("tokens", justify="right")
    table.add_column("message", ratio=2)
    for refusal in refusals:
        status = f"{refusal.code}\n{refusal.reason}" if refusal.code else "NOT REFUSED"
        table.add_row(refusal.case, status, str(refusal.tokens), refusal.message[:220])
    return table


def _colour(call: Call) -> str:
    """The same for a model in every table."""
    return _COLOURS[_MODELS.index(call.ask.model) % len(_COLOURS)]


__all__ = ["figures_table", "live_table", "mix_table", "refusal_table", "text_table"]
