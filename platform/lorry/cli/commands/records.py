"""``lorry usage`` and ``lorry audit``: what was used, and what was done."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.cli.commands.parsing import Commands, group, remote
from lorry.cli.output import as_json, print_json, print_table, show, show_all, when
from lorry.cli.session import session
from lorry.cli.sizes import count
from lorry.cli.times import moment, now

GROUPS = ("day", "hour", "model", "version", "key", "outcome")


def register(commands: Commands) -> None:
    actions = group(commands, "usage", "what a tenant used")
    asked = remote(actions, "query", "sums of the usage ledger, and what it has no row of by reason", _query)
    _add_times(asked)
    asked.add_argument(
        "--by", type=_groups, default=(), metavar="LIST", help=f"some of {', '.join(GROUPS)} (default: one sum)"
    )
    asked.add_argument("--model", default="", metavar="NAME", help="only what this one answered: pirate, models/base")
    out = remote(actions, "export", "the ledger's rows as a file", _export)
    _add_times(out)
    out.add_argument("--format", choices=("csv", "jsonl"), default="csv", help="(default: csv; jsonl with --json)")
    out.add_argument("--output", type=Path, default=None, metavar="FILE", help="(default: standard output)")

    audit = group(commands, "audit", "what was done to a tenant, and by whom")
    listed = remote(audit, "list", "events, newest first", _events)
    listed.add_argument("--limit", type=count, default=None, metavar="N", help="the newest so many (default: all)")
    checked = remote(audit, "verify", "is the chain of events whole? 1 where it is not", _verify)
    checked.add_argument("--known-hash", default="", metavar="HEX", help="one that was noted; it must still be there")
    checked.add_argument("--known-sequence", type=count, default=0, metavar="N", help="its number")


def _add_times(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", type=moment, default=None, metavar="WHEN", help="a date, or 7d ago (default: 30d)")
    parser.add_argument("--until", type=moment, default=None, metavar="WHEN", help="(default: now)")


def _groups(text: str) -> Sequence[str]:
    found = [name for name in text.split(",") if name]
    if not found or set(found) - set(GROUPS):
        raise argparse.ArgumentTypeError(f"{text!r}; write some of {','.join(GROUPS)}")
    return found


def _query(options: argparse.Namespace) -> int:
    hour = timedelta(hours=1)
    until = (options.until or now() + hour).replace(minute=0, second=0, microsecond=0)
    since = (options.since or until - timedelta(days=30)).replace(minute=0, second=0, microsecond=0)
    here = session(options)
    with here.admin() as admin:
        model = here.name(options.model) if options.model else ""
        head = [*options.by, "requests", "prompt tokens", "cached", "output tokens", "ttft p50", "p95"]
        pages = list(admin.query_usage_pages(here.own_tenant(), since, until, group_by=options.by, model=model))
    sums = [one for page in pages for one in page.sums]
    unbilled = [one for page in pages for one in page.unbilled]
    if options.json:
        print_json({"sums": [as_json(one) for one in sums], "unbilled": [as_json(one) for one in unbilled]})
        return 0
    print_table(head, [_row(one, options.by) for one in sums])
    if unbilled:
        times = any(one.time for one in unbilled)
        print("\nnot in the ledger: refused, or ended before a token")
        print_table(
            [*(["time"] if times else []), "reason", "requests"],
            [[*([one.time] if times else []), one.reason, one.requests] for one in unbilled],
        )
    return 0


def _row(one: pb.UsageSum, by: Sequence[str]) -> list[object]:
    named = {"day": one.time, "hour": one.time, "model": one.model, "version": one.version, "key": one.key}
    return [
        *(one.outcome if name == "outcome" else named[name] for name in by),
        one.requests,
        one.prompt_tokens,
        one.cached_prompt_tokens,
        one.output_tokens,
        quantile(one.ttft, 0.5),
        quantile(one.ttft, 0.95),
    ]


def quantile(histogram: pb.LatencyHistogram, part: float) -> str:
    """The upper bound of the bucket that it lies in, in words; ``-`` of nothing."""
    total = sum(histogram.counts)
    if not total:
        return "-"
    reached = 0
    for bound, number in zip(histogram.bounds, histogram.counts, strict=False):
        reached += number
        if reached >= part * total:
            return f"<={bound:g} s"
    return f">{histogram.bounds[-1]:g} s" if histogram.bounds else "-"


def _export(options: argparse.Namespace) -> int:
    until = options.until or now()
    since = options.since or until - timedelta(days=30)
    here = session(options)
    form = "jsonl" if options.json else options.format
    with here.admin() as admin:
        pieces = admin.export_usage(here.own_tenant(), since, until, form=form)
        if options.output is None:
            for data in pieces:
                sys.stdout.write(data.decode())
            sys.stdout.flush()
            return 0
        # Under another name until it is whole: half an export must not look like one.
        scratch = options.output.with_name(f"{options.output.name}.part")
        with scratch.open("wb") as handle:
            handle.writelines(pieces)
        scratch.replace(options.output)
    return 0


def _events(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_all(
            options,
            "events",
            islice(admin.list_audit_events(here.own_tenant()), options.limit),
            ("sequence", "time", "actor", "action", "subject", "details"),
            lambda one: (
                one.sequence,
                when(one, "create_time"),
                one.actor,
                one.action,
                one.subject,
                one.details_json,
            ),
        )
    return 0


def _verify(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        found = admin.verify_audit(
            here.own_tenant(), known_hash=options.known_hash, known_sequence=options.known_sequence
        )
    show(
        options,
        found,
        lambda one: (
            f"intact: {one.events} events, head {one.head_hash}"
            if one.intact
            else f"BROKEN at event {one.broken_sequence}: {one.problem}"
        ),
    )
    return 0 if found.intact else 1


__all__ = ["GROUPS", "quantile", "register"]
