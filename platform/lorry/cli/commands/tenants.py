"""``lorry tenants``: for platform administrators."""

from __future__ import annotations

import argparse

from lorry.cli.commands.parsing import Commands, add_etag, group, remote
from lorry.cli.output import show, show_all, when
from lorry.cli.session import session
from lorry.errors import InvalidRequest

_WEIGHT = "1 to 100: its turns for one of a tenant of weight 1, while requests of both wait"


def register(commands: Commands) -> None:
    actions = group(commands, "tenants", "tenants; for platform administrators")
    made = remote(actions, "create", "make a tenant", _create)
    made.add_argument("id", help="the {t} of tenants/{t}")
    made.add_argument("--display-name", default="", help="for people")
    made.add_argument("--weight", type=int, default=None, metavar="N", help=_WEIGHT)
    remote(actions, "list", "all tenants", _list)
    changed = remote(actions, "update", "change what is given of a tenant", _update)
    changed.add_argument("id", help="the {t} of tenants/{t}")
    changed.add_argument("--display-name", default=None, help="for people")
    changed.add_argument("--weight", type=int, default=None, metavar="N", help=_WEIGHT)
    state = changed.add_mutually_exclusive_group()
    state.add_argument("--suspend", action="store_true", help="refuse its keys")
    state.add_argument("--resume", action="store_true", help="take its keys again")
    prefixes = changed.add_mutually_exclusive_group()
    prefixes.add_argument(
        "--import-prefix",
        action="append",
        default=[],
        metavar="S3",
        help="s3://bucket/prefix/; repeatable, all of them",
    )
    prefixes.add_argument("--no-import-prefixes", action="store_true", help="it may import from nowhere")
    add_etag(changed)


def _create(options: argparse.Namespace) -> int:
    with session(options).admin() as admin:
        made = admin.create_tenant(options.id, options.display_name, weight=options.weight)
    show(options, made, lambda one: f"{one.name} is made")
    return 0


def _list(options: argparse.Namespace) -> int:
    with session(options).admin() as admin:
        show_all(
            options,
            "tenants",
            admin.list_tenants(),
            ("name", "suspended", "weight", "created", "etag", "import prefixes", "display name"),
            lambda one: (
                one.name,
                "yes" if one.suspended else "-",
                str(one.weight),
                when(one, "create_time"),
                one.etag,
                " ".join(one.import_prefixes) or "-",
                one.display_name,
            ),
        )
    return 0


def _update(options: argparse.Namespace) -> int:
    suspended = True if options.suspend else False if options.resume else None
    prefixes = options.import_prefix or ([] if options.no_import_prefixes else None)
    if all(given is None for given in (options.display_name, suspended, prefixes, options.weight)):
        remedy = "give --display-name, --weight, --suspend or --import-prefix"
        raise InvalidRequest.field("update", f"nothing to change; {remedy}")
    with session(options).admin() as admin:
        found = admin.update_tenant(
            options.id,
            display_name=options.display_name,
            suspended=suspended,
            import_prefixes=prefixes,
            weight=options.weight,
            etag=options.etag,
        )
    show(options, found, lambda one: f"{one.name} is changed{', suspended' if one.suspended else ''} (etag {one.etag})")
    return 0


__all__ = ["register"]
