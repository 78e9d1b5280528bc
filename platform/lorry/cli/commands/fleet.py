"""``lorry replicas``: gateways and engines; for platform administrators."""

from __future__ import annotations

import argparse

from lorry.api.v1 import fleet_pb2 as pb
from lorry.cli.commands.parsing import Commands, group, remote
from lorry.cli.output import show, show_all, when, word
from lorry.cli.session import session


def register(commands: Commands) -> None:
    actions = group(commands, "replicas", "gateways and engines; for platform administrators")
    remote(actions, "list", "those that were seen within the last hour", _list)
    remote(actions, "drain", "have a gateway refuse new generations", _drain).add_argument("name")
    remote(actions, "undrain", "take a drain back", _undrain).add_argument("name")


def _list(options: argparse.Namespace) -> int:
    with session(options).admin() as admin:
        show_all(
            options,
            "replicas",
            admin.list_replicas(),
            ("name", "kind", "state", "address", "running", "epoch", "build", "seen"),
            lambda one: (
                one.name,
                word(pb.ReplicaKind, one.kind, "REPLICA_KIND_"),
                word(pb.ReplicaState, one.state, "REPLICA_STATE_"),
                one.address or "-",
                one.running,
                one.registry_epoch or "-",
                one.build,
                when(one, "seen_time"),
            ),
        )
    return 0


def _drain(options: argparse.Namespace) -> int:
    with session(options).admin() as admin:
        show(options, admin.drain_replica(_name(options)), lambda one: f"{one.name} is draining")
    return 0


def _undrain(options: argparse.Namespace) -> int:
    with session(options).admin() as admin:
        show(options, admin.undrain_replica(_name(options)), lambda one: f"{one.name} takes requests again")
    return 0


def _name(options: argparse.Namespace) -> str:
    name: str = options.name
    return name if "/" in name else f"replicas/{name}"


__all__ = ["register"]
