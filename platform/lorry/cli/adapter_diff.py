"""``lorry adapters diff``: two versions side by side."""

from __future__ import annotations

import argparse

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.cli.output import print_json, print_table
from lorry.client.admin.differences import differences


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


__all__ = ["show_diff"]
