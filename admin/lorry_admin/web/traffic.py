"""What the overview shows, from the sums that the registry answers. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.errors import by_reason
from lorry_admin.web import charts
from lorry_admin.web.charts import Chart, Series
from lorry_admin.web.formats import seconds, short_number
from lorry_admin.web.histograms import Histogram, Quantiles, histogram, merged
from lorry_admin.web.periods import Span

OK, ABORTED = "OK", "CANCELLED"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Requests that ended in one way. ``client``: the caller's own doing by its status."""

    reason: str
    requests: int
    aborted: bool
    client: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """``unbilled``: those of ``requests`` that gave no token, and so have no tokens and no times."""

    requests: int
    unbilled: int
    ok: int
    aborted: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: Quantiles
    inter_token: Quantiles
    duration: Quantiles
    outcomes: Sequence[Outcome]
    charts: Sequence[Chart]


def traffic_of(sums: Sequence[pb.UsageSum], unbilled: Sequence[pb.UnbilledSum], span: Span) -> Traffic:
    """``sums`` are grouped by the span's own step and by outcome; ``unbilled`` have a time where that step is an hour
    or a day, and are in the bars then."""
    by_tick: dict[datetime, list[pb.UsageSum]] = defaultdict(list)
    ends: dict[datetime, Counter[str]] = defaultdict(Counter)
    by_outcome: Counter[str] = Counter()
    for one in sums:
        by_tick[_time(one.time)].append(one)
        ends[_time(one.time)][one.outcome] += one.requests
        by_outcome[one.outcome] += one.requests
    for other in unbilled:
        by_outcome[other.reason] += other.requests
        if other.time:
            ends[_time(other.time)][other.reason] += other.requests
    parts = [by_tick[tick] for tick in span.ticks]
    requests = by_outcome.total()
    ok, aborted = by_outcome[OK], by_outcome[ABORTED]
    return Traffic(
        requests,
        sum(one.requests for one in unbilled),
        ok,
        aborted,
        requests - ok - aborted,
        sum(one.prompt_tokens for one in sums),
        sum(one.cached_prompt_tokens for one in sums),
        sum(one.output_tokens for one in sums),
        _merged(sums, "ttft").quantiles(),
        _merged(sums, "inter_token").quantiles(),
        _merged(sums, "duration").quantiles(),
        _outcomes(by_outcome),
        _charts(parts, [ends[tick] for tick in span.ticks], span),
    )


def _outcomes(by_outcome: Counter[str]) -> list[Outcome]:
    known = by_reason()
    made = []
    for reason, count in by_outcome.items():
        if reason == OK or not count:
            continue
        kind = known.get(reason)
        made.append(Outcome(reason, count, reason == ABORTED, kind is not None and kind.http_status < 500))
    return sorted(made, key=lambda one: (-one.requests, one.reason))


def _charts(parts: Sequence[Sequence[pb.UsageSum]], ends: Sequence[Counter[str]], span: Span) -> list[Chart]:
    labels = [f"{tick:%H:%M}" if span.period.by != "day" else f"{tick:%b} {tick.day}" for tick in span.ticks]
    ok, aborted = [one[OK] for one in ends], [one[ABORTED] for one in ends]
    errors = [one.total() - one[OK] - one[ABORTED] for one in ends]
    prompt = [sum(one.prompt_tokens for one in part) for part in parts]
    output = [sum(one.output_tokens for one in part) for part in parts]
    series = Series
    return [
        charts.bars(
            "requests",
            "Requests",
            "requests",
            labels,
            [series("ok", "c1", ok), series("aborted", "c3", aborted), series("failed", "c4", errors)],
            _count,
        ),
        charts.bars(
            "tokens",
            "Tokens",
            "tokens",
            labels,
            [series("prompt", "c2", prompt), series("output", "c1", output)],
            _count,
        ),
        _latency("ttft", "Time to first token", labels, parts),
        _latency("inter_token", "Time between tokens", labels, parts),
    ]


def _latency(field: str, title: str, labels: Sequence[str], parts: Sequence[Sequence[pb.UsageSum]]) -> Chart:
    found = [_merged(part, field).quantiles() for part in parts]
    made = [
        Series("p50", "c1", [one.p50 for one in found]),
        Series("p95", "c2", [one.p95 for one in found]),
        Series("p99", "c4", [one.p99 for one in found]),
    ]
    return charts.lines(field, title, "seconds", labels, made, seconds)


def _merged(sums: Iterable[pb.UsageSum], field: str) -> Histogram:
    return merged(histogram(getattr(one, field)) for one in sums)


def _count(value: float | None) -> str:
    return "–" if value is None else short_number(value)


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


__all__ = ["ABORTED", "OK", "Outcome", "Traffic", "traffic_of"]
