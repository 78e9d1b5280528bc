"""``lorry quota``: limits of a tenant, or of its use of one adapter."""

from __future__ import annotations

import argparse

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.cli.commands.parsing import Commands, add_etag, group, remote
from lorry.cli.output import show, show_all
from lorry.cli.session import session
from lorry.cli.sizes import count

LIMITS = {
    "requests-per-minute": "requests begun in a minute",
    "concurrency": "requests that run or wait at one time",
    "queue-length": "requests beyond the concurrency that wait for their turn",
    "tokens-per-month": "tokens of prompts and outputs in a calendar month, UTC",
    "max-tokens-cap": "output tokens of one request, all choices together",
}


def register(commands: Commands) -> None:
    actions = group(commands, "quota", "limits of a tenant, or of its use of one adapter")
    made = remote(actions, "set", "set limits, in place of all that were there", _set)
    made.add_argument("--adapter", default="", help="pirate (default: everything that the tenant does)")
    for name, text in LIMITS.items():
        kind = _whole if name in ("queue-length", "tokens-per-month") else count
        made.add_argument(f"--{name}", type=kind, default=None, metavar="N", help=f"{text} (default: no limit)")
    add_etag(made, new=True)
    remote(actions, "list", "a tenant's limits and what is used of them", _list)
    gone = remote(actions, "delete", "take limits away", _delete)
    gone.add_argument("name", help="its id, or its full name")
    add_etag(gone)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _set(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        found = admin.set_quota(
            here.own_tenant(),
            adapter=here.name(options.adapter) if options.adapter else "",
            requests_per_minute=options.requests_per_minute,
            concurrency=options.concurrency,
            queue_length=options.queue_length,
            tokens_per_month=options.tokens_per_month,
            max_tokens_cap=options.max_tokens_cap,
            etag=options.etag,
        )
    show(options, found, lambda one: f"{one.name} of {one.adapter or 'the tenant'} is set (etag {one.etag})")
    return 0


def _list(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        head = ("name", "of", "requests/min", "at once", "queue", "tokens/month", "used", "cap", "etag")
        show_all(options, "quotas", admin.list_quotas(here.own_tenant()), head, _row)
    return 0


def _row(quota: pb.Quota) -> tuple[object, ...]:
    limits, use = quota.limits, quota.use

    def limit(field: str) -> object:
        return getattr(limits, field) if limits.HasField(field) else "-"  # type: ignore[arg-type]  # a field's name

    return (
        quota.name,
        quota.adapter or "the tenant",
        limit("requests_per_minute"),
        limit("concurrency"),
        limit("queue_length"),
        limit("tokens_per_month"),
        f"{use.tokens_used} + {use.tokens_leased} held ({use.month})" if quota.HasField("use") else "-",
        limit("max_tokens_cap"),
        quota.etag,
    )


def _delete(options: argparse.Namespace) -> int:
    here = session(options)
    name = here.child(options.name, "quotas")
    with here.admin() as admin:
        show(options, admin.delete_quota(name, etag=options.etag), lambda _: f"{name} is gone")
    return 0


__all__ = ["LIMITS", "register"]
