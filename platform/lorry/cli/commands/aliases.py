"""``lorry alias``: names for versions that can be moved."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.api.v1 import fleet_pb2 as fleet
from lorry.cli.adapter_views import alias_text, show_aliases
from lorry.cli.commands.parsing import Commands, add_etag, group, remote
from lorry.cli.names import alias_name
from lorry.cli.output import show, show_all, when, word
from lorry.cli.session import session
from lorry.cli.sizes import count
from lorry.client.admin import SyncAdminClient


def register(commands: Commands) -> None:
    actions = group(commands, "alias", "names for versions that can be moved: pirate@prod")
    made = remote(actions, "set", "point an alias at a version; a canary that ran is over", _set)
    made.add_argument("alias", help="pirate@prod")
    made.add_argument("version", type=count, help="its number")
    add_etag(made, new=True)
    remote(actions, "list", "an adapter's aliases", _list).add_argument("adapter", help="pirate")
    remote(actions, "history", "what an alias pointed at, newest first", _history).add_argument("alias")
    rollouts = remote(actions, "rollouts", "canaries and how they ended, newest first", _rollouts)
    rollouts.add_argument("name", help="pirate: of all its aliases; pirate@prod: of one")
    canary = remote(actions, "canary", "give a part of an alias's requests to another version", _canary)
    canary.add_argument("alias", help="pirate@prod")
    canary.add_argument("version", type=count, help="its number")
    canary.add_argument("permille", type=count, help="thousandths of the requests, 1 to 999")
    add_etag(canary)
    for name, run, text in (
        ("promote", _promote, "make the canary what the alias points at"),
        ("rollback", _rollback, "end a canary, or point the alias at what it pointed at before"),
        ("delete", _delete, "take an alias away"),
    ):
        parser = remote(actions, name, text, run)
        parser.add_argument("alias", help="pirate@prod")
        add_etag(parser)


def _one(options: argparse.Namespace, act: Callable[[SyncAdminClient, str], pb.Alias]) -> int:
    here = session(options)
    name = here.name(options.alias)
    alias_name(name)
    with here.admin() as admin:
        show(options, act(admin, name), alias_text)
    return 0


def _set(options: argparse.Namespace) -> int:
    return _one(options, lambda admin, name: admin.set_alias(*alias_name(name), options.version, etag=options.etag))


def _canary(options: argparse.Namespace) -> int:
    return _one(
        options, lambda admin, name: admin.set_canary(name, options.version, options.permille, etag=options.etag)
    )


def _promote(options: argparse.Namespace) -> int:
    return _one(options, lambda admin, name: admin.promote_canary(name, etag=options.etag))


def _rollback(options: argparse.Namespace) -> int:
    return _one(options, lambda admin, name: admin.rollback_alias(name, etag=options.etag))


def _delete(options: argparse.Namespace) -> int:
    return _one(options, lambda admin, name: admin.delete_alias(name, etag=options.etag))


def _list(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_aliases(options, "aliases", list(admin.list_aliases(here.name(options.adapter))))
    return 0


def _history(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_aliases(options, "revisions", list(admin.list_alias_revisions(here.name(options.alias))))
    return 0


def _rollouts(options: argparse.Namespace) -> int:
    here = session(options)
    name = here.name(options.name)
    adapter, alias = alias_name(name) if "@" in name else (name, "")
    with here.admin() as admin:
        show_all(
            options,
            "rollouts",
            admin.list_rollouts(adapter, alias=alias),
            ("alias", "version", "canary", "state", "began", "ended", "by"),
            lambda one: (
                one.alias.rpartition("@")[2],
                one.version,
                f"{one.canary_version} ({one.canary_permille}/1000)" if one.canary_permille else one.canary_version,
                word(fleet.RolloutState, one.state, "ROLLOUT_STATE_"),
                when(one, "begin_time"),
                when(one, "end_time"),
                one.actor,
            ),
        )
    return 0


__all__ = ["register"]
