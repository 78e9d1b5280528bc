"""``lorry adapters versions|diff|quarantine|deprecate|preload|evict|residency``."""

from __future__ import annotations

import argparse

from lorry.cli.adapter_diff import show_diff
from lorry.cli.adapter_views import VERSION_HEAD, show_residency, version_row
from lorry.cli.commands.parsing import Commands, remote
from lorry.cli.names import version_meant, version_name
from lorry.cli.output import show, show_all
from lorry.cli.session import session
from lorry.cli.times import span


def register(actions: Commands) -> None:
    listed = remote(actions, "versions", "an adapter's versions, newest first", _versions)
    listed.add_argument("name", help="pirate")
    diff = remote(actions, "diff", "what differs between two versions: report, settings, files", _diff)
    diff.add_argument("a", metavar="A", help="pirate/versions/3, pirate@prod, or pirate for the newest READY one")
    diff.add_argument("b", metavar="B")
    for name, run, text in (
        ("quarantine", _quarantine, "have nothing answered by a version any more; there is no way back"),
        ("deprecate", _deprecate, "serve a version only to who names it"),
    ):
        parser = remote(actions, name, text, run)
        parser.add_argument("name", help="pirate/versions/3")
        parser.add_argument("--reason", required=True, help="kept with the version and in the audit log")
    preload = remote(actions, "preload", "bring a version into memory before anybody asks for it", _preload)
    preload.add_argument("name", help="pirate/versions/3, pirate@prod, pirate")
    preload.add_argument("--wait", type=span, default=None, metavar="SPAN", help="at most (default: 30s)")
    for name, run, text in (
        ("evict", _evict, "take an idle version out of device memory"),
        ("residency", _residency, "where a version's bytes are now"),
    ):
        remote(actions, name, text, run).add_argument("name", help="pirate/versions/3, pirate@prod, pirate")


def _versions(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_all(options, "versions", admin.list_versions(here.name(options.name)), VERSION_HEAD, version_row)
    return 0


def _diff(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        a, b = (admin.get_version(version_meant(admin, here.name(name))) for name in (options.a, options.b))
    show_diff(options, a, b)
    return 0


def _quarantine(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        found = admin.quarantine_version(version_name(here.name(options.name)), options.reason)
    show(options, found, lambda one: f"{one.name} is quarantined")
    return 0


def _deprecate(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        found = admin.deprecate_version(version_name(here.name(options.name)), options.reason)
    show(options, found, lambda one: f"{one.name} is deprecated")
    return 0


def _preload(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        name = version_meant(admin, here.name(options.name))
        show_residency(options, admin.preload_version(name, wait_s=options.wait))
    return 0


def _evict(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_residency(options, admin.evict_version(version_meant(admin, here.name(options.name))))
    return 0


def _residency(options: argparse.Namespace) -> int:
    here = session(options)
    with here.admin() as admin:
        show_residency(options, admin.get_residency(version_meant(admin, here.name(options.name))))
    return 0


__all__ = ["register"]
