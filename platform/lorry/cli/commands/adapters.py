"""``lorry adapters``: names, and what lies under them."""

from __future__ import annotations

import argparse
from pathlib import Path

from lorry.cli.adapter_views import receipt_text, show_adapter, show_version
from lorry.cli.asking import sure
from lorry.cli.commands import pushing, versions
from lorry.cli.commands.parsing import Commands, add_etag, add_json, group, home_of, remote
from lorry.cli.names import bare_name, version_meant
from lorry.cli.output import show, show_all, when
from lorry.cli.session import session


def register(commands: Commands) -> None:
    actions = group(commands, "adapters", "adapters and their versions")
    pushing.register(actions)
    _validate(actions)
    listed = remote(actions, "list", "a tenant's adapters", _list)
    listed.add_argument("--deleted", action="store_true", help="deleted ones too")
    shown = remote(actions, "show", "an adapter with its aliases and versions, or one version", _show)
    shown.add_argument("name", help="pirate, pirate@prod, pirate/versions/3")
    versions.register(actions)
    for name, run, text in (
        ("delete", _delete, "end an adapter for everybody; it can be undeleted until its purge time"),
        ("undelete", _undelete, "take a deletion back"),
        ("purge", _purge, "destroy a deleted adapter's bytes wherever they are; there is no way back"),
    ):
        parser = remote(actions, name, text, run)
        parser.add_argument("name", help="pirate")
        add_etag(parser)
        if name == "purge":
            parser.add_argument("--yes", action="store_true", help="do not ask")
    formats = actions.add_parser("formats", help="what of PEFT's adapters is served, and what is refused")
    formats.set_defaults(run=_formats)
    add_json(formats)


def _validate(actions: Commands) -> None:
    validate = actions.add_parser("validate", help="would this folder be accepted? Non-zero where it would not")
    validate.set_defaults(run=_run_validate)
    validate.add_argument("folder", type=Path)
    validate.add_argument(
        "--base", type=Path, default=None, help="Hugging Face folder of the base (default: the demo's)"
    )
    add_json(validate)


def _run_validate(options: argparse.Namespace) -> int:
    from lorry.cli.validate import validate

    return validate(options, home_of(options))


def _formats(options: argparse.Namespace) -> int:
    from lorry.cli.formats import formats

    return formats(options)


def _list(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_all(
            options,
            "adapters",
            admin.list_adapters(here.own_tenant(), show_deleted=options.deleted),
            ("name", "versions", "created", "deleted", "display name"),
            lambda one: (
                one.name,
                one.last_version,
                when(one, "create_time"),
                when(one, "delete_time"),
                one.display_name,
            ),
        )
    return 0


def _show(options: argparse.Namespace) -> int:
    here = session(options)
    name = here.name(options.name)
    with here.admin() as admin:
        if name == bare_name(name):
            show_adapter(options, admin, name)
        else:
            show_version(options, admin.get_version(version_meant(admin, name)))
    return 0


def _delete(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        found = admin.delete_adapter(here.name(options.name), etag=options.etag)
    show(options, found, lambda one: f"{one.name} is deleted; it is purged after {when(one, 'purge_time') or 'a time'}")
    return 0


def _undelete(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show(
            options,
            admin.undelete_adapter(here.name(options.name), etag=options.etag),
            lambda one: f"{one.name} is there again",
        )
    return 0


def _purge(options: argparse.Namespace) -> int:
    here = session(options)
    name = here.name(options.name)
    sure(options, f"Destroy the bytes of every version of {name}?")
    with here.admin() as admin:
        show(options, admin.purge_adapter(name, etag=options.etag), receipt_text)
    return 0


__all__ = ["register"]
