"""Adapters of the zoo with something in their files changed, and why they are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from lorry.adapters.validate import validate_directory
from tests.oracle.worlds import World
from tests.support.kinds import LAYER_KINDS, VOCABULARY_KINDS
from tests.support.zoo import SINGLE, Kind

KINDS: Mapping[str, Kind] = {**LAYER_KINDS, **VOCABULARY_KINDS}


def changed(world: World, name: str, folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of an adapter with other tensors."""
    made = world.made(name, KINDS[name])
    shutil.copytree(made.folder, folder)
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE, {"format": "pt"})
    return folder


def reasons(world: World, folder: Path) -> list[str]:
    """Why it is refused, each with the check's id."""
    report = validate_directory(folder, world.bench.spec, base_dir=world.folder / "base")
    return [f"{check.id}: {check.message}" for check in report.failed]


__all__ = ["KINDS", "changed", "reasons"]
