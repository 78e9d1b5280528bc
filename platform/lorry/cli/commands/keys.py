"""``lorry keys``: API keys."""

from __future__ import annotations

import argparse

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.cli.commands.parsing import Commands, add_expires, group, remote
from lorry.cli.output import as_json, print_json, printable, say, show, show_all, when, word
from lorry.cli.session import session
from lorry.cli.times import span


def register(commands: Commands) -> None:
    actions = group(commands, "keys", "API keys")
    made = remote(actions, "create", "make a key; its text alone goes to standard output, this once", _create)
    made.add_argument("principal", help="whose key it is, a name within the tenant")
    made.add_argument(
        "--role", choices=("viewer", "member", "operator", "owner", "admin"), default="member", help="(default: member)"
    )
    add_expires(made)
    remote(actions, "list", "a tenant's keys, without their text", _list)
    rotated = remote(actions, "rotate", "put a key in place of another, which ends after the overlap", _rotate)
    rotated.add_argument("name", help="its id, or its full name")
    rotated.add_argument("--overlap", type=span, default=0.0, metavar="SPAN", help="as 1h or 7d (default: none)")
    add_expires(rotated)
    remote(actions, "revoke", "end a key now", _revoke).add_argument("name", help="its id, or its full name")


def _create(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        tenant = here.own_tenant()
        _show_made(options, admin.create_key(tenant, options.principal, options.role, expire_time=options.expires))
    return 0


def _rotate(options: argparse.Namespace) -> int:
    here = session(options)
    name = here.child(options.name, "apiKeys")
    with here.admin() as admin:
        _show_made(options, admin.rotate_key(name, overlap_s=options.overlap, expire_time=options.expires))
    return 0


def _show_made(options: argparse.Namespace, made: pb.CreateApiKeyResponse) -> None:
    if options.json:
        print_json(as_json(made))
        return
    key = made.api_key
    expires = when(key, "expire_time") or "never"
    say(printable(f"{key.name} of {key.principal}, expires {expires}; the key is shown this once:"))
    print(printable(made.text))


def _list(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_all(
            options,
            "apiKeys",
            admin.list_keys(here.own_tenant()),
            ("name", "principal", "role", "ends with", "created", "last used", "expires", "revoked"),
            lambda key: (
                key.name,
                key.principal,
                word(pb.Role, key.role, "ROLE_"),
                key.last_four,
                when(key, "create_time"),
                when(key, "last_use_time"),
                when(key, "expire_time"),
                when(key, "revoke_time"),
            ),
        )
    return 0


def _revoke(options: argparse.Namespace) -> int:
    here = session(options)
    name = here.child(options.name, "apiKeys")
    with here.admin() as admin:
        show(options, admin.revoke_key(name), lambda key: f"{key.name} is revoked since {when(key, 'revoke_time')}")
    return 0


__all__ = ["register"]
