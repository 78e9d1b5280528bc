"""``lorry grants`` and ``lorry pin``: what a tenant may use, and which version it gets."""

from __future__ import annotations

import argparse

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.cli.commands.parsing import Commands, group, remote
from lorry.cli.names import bare_name, version_name
from lorry.cli.output import show, show_all, when, word
from lorry.cli.session import session
from lorry.errors import ResourceNotFound


def register(commands: Commands) -> None:
    actions = group(commands, "grants", "what a tenant may generate with")
    made = remote(actions, "create", "let a tenant generate with an adapter or a base", _create)
    made.add_argument("resource", help="models/smol, tenants/acme/adapters/pirate, pirate")
    remote(actions, "list", "a tenant's grants, newest first, revoked ones included", _list)
    ended = remote(actions, "revoke", "end a grant; live streams are cut", _revoke)
    ended.add_argument("grant", help="its id, its full name, or the resource")

    pins = group(commands, "pin", "which version of an adapter a tenant gets")
    held = remote(pins, "set", "hold a tenant to a version", _pin)
    held.add_argument("version", help="pirate/versions/3")
    held.add_argument(
        "--mode",
        choices=("hard", "default"),
        default="hard",
        help="default: other versions may be named (default: hard)",
    )
    remote(pins, "list", "a tenant's pins", _pins)
    remote(pins, "clear", "take a pin away", _clear).add_argument("adapter", help="pirate")


def _create(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        found = admin.grant(here.own_tenant(), here.name(options.resource))
    show(options, found, lambda one: f"{one.name} for {one.resource}")
    return 0


def _list(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_all(
            options,
            "grants",
            admin.list_grants(here.own_tenant()),
            ("name", "resource", "created", "revoked"),
            lambda one: (one.name, one.resource, when(one, "create_time"), when(one, "revoke_time")),
        )
    return 0


def _revoke(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        name: str = options.grant
        if name.startswith("gr_"):
            name = here.child(name, "grants")
        elif "/grants/" not in name:
            resource, tenant = here.name(name), here.own_tenant()
            active = [one for one in admin.list_grants(tenant) if one.resource == resource]
            active = [one for one in active if not one.HasField("revoke_time")]
            if not active:
                raise ResourceNotFound(f"tenants/{tenant} has no active grant on {resource}; see lorry grants list")
            name = active[0].name
        show(options, admin.revoke_grant(name), lambda one: f"{one.name} is revoked since {when(one, 'revoke_time')}")
    return 0


def _pin(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        found = admin.set_pin(here.own_tenant(), version_name(here.name(options.version)), mode=options.mode)
    show(options, found, lambda one: f"{one.tenant} gets {one.version} ({word(pb.PinMode, one.mode, 'PIN_MODE_')})")
    return 0


def _pins(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_all(
            options,
            "pins",
            admin.list_pins(here.own_tenant()),
            ("version", "mode", "created"),
            lambda one: (one.version, word(pb.PinMode, one.mode, "PIN_MODE_"), when(one, "create_time")),
        )
    return 0


def _clear(options: argparse.Namespace) -> int:
    here = session(options)
    adapter = bare_name(here.name(options.adapter))
    with here.admin() as admin:
        show(options, admin.clear_pin(here.own_tenant(), adapter), lambda _: f"no pin on {adapter}")
    return 0


__all__ = ["register"]
