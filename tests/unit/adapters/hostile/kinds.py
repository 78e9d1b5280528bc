"""A kind of attack: how a good adapter is spoilt, and which row must say so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from lorry.adapters.report import Check, ValidationReport
from lorry.adapters.sandbox.limits import SandboxLimits
from lorry.adapters.validate import Limits
from tests.support.tiny_tokenizer import write_tokenizer
from tests.unit.adapters import craft

BASE_CONFIG: dict[str, Any] = craft.BASE_CONFIG | {"vocab_size": 320}
CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
MANY_FILES = Limits(max_files=1000)
TALKATIVE = SandboxLimits(rows=100_000)
_STRAY = 800
Spoil = Callable[[Path, Random], object]


@dataclass(frozen=True)
class Kind:
    """``spoil`` changes the good adapter in the folder. A failed row must have an id that ``id`` matches whole and a
    message in which ``says`` is found. ``variations``: how many draws are different."""

    name: str
    id: str
    says: str
    spoil: Spoil
    variations: int = 3

    def make(self, folder: Path, seed: int = 0) -> Path:
        write_good(folder)
        self.spoil(folder, Random(f"{self.name} {seed}"))
        return folder

    def row(self, report: ValidationReport) -> Check | None:
        return next((row for row in report.failed if self._is(row)), None)

    def _is(self, row: Check) -> bool:
        return re.fullmatch(self.id, row.id) is not None and re.search(self.says, row.message) is not None


def write_good(folder: Path) -> Path:
    return craft.write_adapter(folder)


def write_base(folder: Path) -> Path:
    """A base's folder as far as validation of a plain LoRA reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(BASE_CONFIG))
    write_tokenizer(folder)
    return folder


def write_long(folder: Path) -> Path:
    """With ``MANY_FILES`` it is refused in thousands of rows, and with ``TALKATIVE`` their text is far longer than a
    pipe: the child waits until it is read."""
    write_good(folder)
    for index in range(_STRAY):
        (folder / f"{index:x}".ljust(200, "x")).touch()
    return folder


def weights(make: Callable[[Random], bytes]) -> Spoil:
    """The whole weights file is what ``make`` draws."""
    return lambda folder, draw: (folder / WEIGHTS_NAME).write_bytes(make(draw))


def config(make: Callable[[Random], bytes]) -> Spoil:
    """The whole config is what ``make`` draws."""
    return lambda folder, draw: (folder / CONFIG_NAME).write_bytes(make(draw))


def field(name: str, *values: Any) -> Spoil:
    """One field of the config has one of the values."""
    return config(lambda draw: json.dumps(craft.CONFIG | {name: draw.choice(values)}).encode())


def text(name: str, *contents: str | bytes) -> Spoil:
    """A file of that name with one of the contents."""

    def spoil(folder: Path, draw: Random) -> None:
        content = draw.choice(contents)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return spoil


def sparse(name: str, size: int) -> Spoil:
    """A file that is as large as stated and takes no room."""

    def spoil(folder: Path, draw: Random) -> None:
        with (folder / name).open("ab") as handle:
            handle.truncate(size)

    return spoil


__all__ = [
    "BASE_CONFIG",
    "CONFIG_NAME",
    "MANY_FILES",
    "TALKATIVE",
    "WEIGHTS_NAME",
    "Kind",
    "Spoil",
    "config",
    "field",
    "sparse",
    "text",
    "weights",
    "write_base",
    "write_good",
    "write_long",
]
