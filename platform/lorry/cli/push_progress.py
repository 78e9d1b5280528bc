"""How far a push is, on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lorry.api.v1 import adapter_admin_pb2 as pb
from lorry.cli.output import printable, say
from lorry.client.admin import OnCheck
from lorry.client.admin import Progress as OnProgress

_STEP = 10
"""Per cent from line to line."""


@contextmanager
def follow(quiet: bool) -> Iterator[tuple[OnProgress, OnCheck | None]]:
    """What to tell the bytes that arrived, and the rows of the validation."""
    if quiet:
        yield (lambda done, total: None), None
        return
    if not sys.stderr.isatty():
        yield _Lines(), _say_check
        return
    columns = (
        TextColumn("upload"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("upload", total=None)

        def on_check(check: pb.ValidationCheck) -> None:
            bar.console.print(_check_text(check), markup=False, highlight=False)

        yield (lambda done, total: bar.update(task, completed=done, total=total)), on_check


class _Lines:
    """A line when it begins, at each tenth, and at the end; never the same twice."""

    def __init__(self) -> None:
        self._said = -1

    def __call__(self, done: int, total: int) -> None:
        reached = 100 * done // total // _STEP * _STEP if total else 100
        if reached != self._said:
            self._said = reached
            say(f"uploaded {done} of {total} bytes ({reached}%)")


def _say_check(check: pb.ValidationCheck) -> None:
    say(_check_text(check))


def _check_text(check: pb.ValidationCheck) -> str:
    limit = f" (limit {check.limit})" if check.limit else ""
    return printable(f"{check.outcome:<5} {check.id}  {check.message}{limit}")


__all__ = ["follow"]
