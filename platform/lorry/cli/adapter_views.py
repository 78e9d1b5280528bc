"""Adapters, versions and their places as people read them."""

from __future__ import annotations

import argparse

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.cli.output import as_json, print_json, print_table, printable, show_all, when, word
from lorry.client.admin import SyncAdminClient

VERSION_HEAD = ("version", "state", "rank", "bytes", "sha256", "base", "created", "reason")
ALIAS_HEAD = ("alias", "version", "canary", "revision", "changed", "etag")


def version_row(version: pb.AdapterVersion) -> tuple[object, ...]:
    return (
        version.version,
        state_of(version),
        version.rank,
        version.size_bytes,
        version.sha256[:12],
        version.base,
        when(version, "create_time"),
        version.state_reason,
    )


def state_of(version: pb.AdapterVersion) -> str:
    return word(pb.AdapterVersionState, version.state, "ADAPTER_VERSION_STATE_")


def alias_row(alias: pb.Alias) -> tuple[object, ...]:
    canary = f"{alias.canary_version} ({alias.canary_permille}/1000)" if alias.canary_version else ""
    target: object = "deleted" if alias.deleted else alias.version
    return alias.name.rpartition("@")[2], target, canary, alias.revision, when(alias, "update_time"), alias.etag


def show_adapter(options: argparse.Namespace, admin: SyncAdminClient, name: str) -> None:
    """With its aliases and versions."""
    adapter = admin.get_adapter(name)
    aliases, versions = list(admin.list_aliases(name)), list(admin.list_versions(name))
    if options.json:
        found = {"adapter": as_json(adapter), "aliases": [as_json(one) for one in aliases]}
        print_json({**found, "versions": [as_json(one) for one in versions]})
        return
    _fields(
        ("name", adapter.name),
        ("display name", adapter.display_name),
        ("created", when(adapter, "create_time")),
        ("deleted", when(adapter, "delete_time")),
        ("purged from", when(adapter, "purge_time")),
        ("etag", adapter.etag),
    )
    if aliases:
        print()
        print_table(ALIAS_HEAD, [alias_row(one) for one in aliases])
    if versions:
        print()
        print_table(VERSION_HEAD, [version_row(one) for one in versions])


def show_version(options: argparse.Namespace, version: pb.AdapterVersion) -> None:
    if options.json:
        print_json(as_json(version))
        return
    _fields(
        ("name", version.name),
        ("state", state_of(version)),
        ("reason", version.state_reason),
        ("sha256", version.sha256),
        ("base", f"{version.base} {version.base_sha256}"),
        ("rank", version.rank),
        ("bytes", version.size_bytes),
        ("vocabulary", version.vocabulary or ""),
        ("end tokens", " ".join(map(str, version.end_token_ids))),
        ("tokenizer", version.tokenizer_sha256),
        ("imported from", version.source_uri),
        ("created", when(version, "create_time")),
    )
    print()
    print_table(("file", "bytes", "sha256"), [(file.path, file.size, file.sha256) for file in version.files])
    print()
    print_table(("check", "outcome", "message"), [(one.id, one.outcome, one.message) for one in version.checks])


def show_residency(options: argparse.Namespace, found: pb.Residency) -> None:
    if options.json:
        print_json(as_json(found))
        return
    print(printable(found.name))

    def yes(value: bool) -> str:
        return "yes" if value else "-"

    rows = [
        (one.replica, yes(one.device), yes(one.host), yes(one.disk), one.running, when(one, "seen_time") or "now")
        for one in found.replicas
    ]
    print_table(("replica", "device", "host", "disk", "running", "seen"), rows)


def receipt_text(receipt: pb.PurgeReceipt) -> str:
    lines = [f"{receipt.adapter} was purged at {when(receipt, 'purge_time')}"]
    lines += [f"  version {one.version}: {one.files} files, {one.bytes} bytes" for one in receipt.versions]
    lines += [
        f"  {one.replica}: disk {one.disk_bytes} bytes, host {one.host_bytes} bytes, {one.device_slots} device slots,"
        f" {one.kv_pages} KV pages"
        for one in receipt.replicas
    ]
    return "\n".join(printable(line) for line in lines)


def show_aliases(options: argparse.Namespace, key: str, aliases: list[pb.Alias]) -> None:
    show_all(options, key, aliases, ALIAS_HEAD, alias_row)


def alias_text(alias: pb.Alias) -> str:
    if alias.deleted:
        return f"{alias.name} is deleted"
    canary = f", {alias.canary_permille}/1000 to version {alias.canary_version}" if alias.canary_version else ""
    return f"{alias.name} is version {alias.version}{canary} (revision {alias.revision}, etag {alias.etag})"


def _fields(*pairs: tuple[str, object]) -> None:
    for name, value in pairs:
        if value != "":
            print(f"{name + ':':<15}{printable(value)}")


__all__ = [
    "ALIAS_HEAD",
    "VERSION_HEAD",
    "alias_row",
    "alias_text",
    "receipt_text",
    "show_adapter",
    "show_aliases",
    "show_residency",
    "show_version",
    "state_of",
    "version_row",
]
