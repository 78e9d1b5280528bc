"""``lorry adapters diff``: two versions side by side, by what the registry knows of them: settings, the values that
validation found (of ranks, targets, kinds and coverage), and every file by its digest."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.cli.adapter_views import state_of
from lorry.cli.output import print_json, print_table


@dataclass(frozen=True, slots=True)
class Difference:
    """``kind``: ``field``, ``check`` or ``file``. "" on one side: it is not there."""

    kind: str
    name: str
    a: str
    b: str


def differences(a: pb.AdapterVersion, b: pb.AdapterVersion) -> list[Difference]:
    """Empty where nothing but number and time differs."""
    return [
        *_compared("field", _fields(a), _fields(b)),
        *_compared("check", _checks(a), _checks(b)),
        *_compared("file", _files(a), _files(b)),
    ]


def show_diff(options: argparse.Namespace, a: pb.AdapterVersion, b: pb.AdapterVersion) -> None:
    found = differences(a, b)
    same = a.sha256 == b.sha256
    if options.json:
        rows = [{"kind": one.kind, "name": one.name, "a": one.a, "b": one.b} for one in found]
        print_json({"a": a.name, "b": b.name, "sameWeights": same, "differences": rows})
        return
    print(f"A  {a.name}\nB  {b.name}")
    print("the same files" if same else "other files: other weights or other settings")
    if found:
        print_table(("", "", "A", "B"), [(one.kind, one.name, one.a or "-", one.b or "-") for one in found])


def _compared(kind: str, a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    names = [*a, *(name for name in b if name not in a)]
    pairs = [(name, a.get(name, ""), b.get(name, "")) for name in names]
    return [Difference(kind, name, left, right) for name, left, right in pairs if left != right]


def _fields(version: pb.AdapterVersion) -> dict[str, str]:
    return {
        "state": state_of(version),
        "sha256": version.sha256,
        "base": version.base,
        "base_sha256": version.base_sha256,
        "rank": str(version.rank),
        "size_bytes": str(version.size_bytes),
        "tokenizer_sha256": version.tokenizer_sha256,
        "vocabulary": str(version.vocabulary),
        "end_token_ids": " ".join(map(str, version.end_token_ids)),
        "source_uri": version.source_uri,
    }


def _checks(version: pb.AdapterVersion) -> dict[str, str]:
    """What was found, by check; a check may have several rows."""
    found: dict[str, str] = {}
    for check in version.checks:
        value = check.value or check.message
        text = value if check.outcome == "pass" else f"{check.outcome}: {value}"
        found[check.id] = f"{found[check.id]}; {text}" if check.id in found else text
    return found


def _files(version: pb.AdapterVersion) -> dict[str, str]:
    return {file.path: f"{file.size} bytes {file.sha256}" for file in version.files}


__all__ = ["Difference", "differences", "show_diff"]
