"""``lorry prices``: what a tenant's tokens cost."""

from __future__ import annotations

import argparse

from lorry.api.v1 import user_admin_pb2 as pb
from lorry.cli.commands.parsing import Commands, group, remote
from lorry.cli.output import show, show_all, when
from lorry.cli.session import session
from lorry.cli.times import moment


def register(commands: Commands) -> None:
    actions = group(commands, "prices", "what a tenant's tokens cost")
    made = remote(actions, "set", "say what a million tokens cost from a day on; for platform administrators", _set)
    made.add_argument("currency", help="three letters, as EUR; all of a tenant's prices are in one")
    made.add_argument("--prompt", required=True, metavar="AMOUNT", help="of prompts, as 0.15")
    made.add_argument(
        "--cached", default="", metavar="AMOUNT", help="of what the prefix cache had (default: as prompt)"
    )
    made.add_argument("--output", required=True, metavar="AMOUNT", help="of outputs, as 0.60")
    made.add_argument("--from", type=moment, default=None, dest="since", metavar="DATE", help="UTC (default: today)")
    remote(actions, "list", "a tenant's prices, newest first", _list)


def _set(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        found = admin.set_price(
            here.own_tenant(),
            options.currency,
            prompt=options.prompt,
            cached_prompt=options.cached,
            output=options.output,
            effective_time=options.since,
        )
    show(
        options,
        found,
        lambda one: (
            f"{one.tenant} pays {one.prompt} (cached {one.cached_prompt}, output {one.output}) {one.currency} "
            f"for a million tokens from {_day(one)} on"
        ),
    )
    return 0


def _list(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_all(
            options,
            "prices",
            admin.list_prices(here.own_tenant()),
            ("from", "currency", "prompt", "cached prompt", "output"),
            lambda one: (_day(one), one.currency, one.prompt, one.cached_prompt, one.output),
        )
    return 0


def _day(price: pb.Price) -> str:
    return when(price, "effective_time").partition("T")[0]


__all__ = ["register"]
