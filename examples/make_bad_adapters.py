"""Adapters that a right-minded platform refuses: each made from a good one by a single change.

    python examples/make_bad_adapters.py OUT [kind ...] [--source examples/adapters/json]

writes OUT/<kind>/ for each kind. The demo shows that none of them yields a token; the tests upload every one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

DEFAULT_SOURCE = Path(__file__).resolve().parent / "adapters" / "json"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

Tensors = dict[str, torch.Tensor]


def _first(tensors: Tensors, part: str) -> str:
    return min(name for name in tensors if part in name)


def _half_dora(config: dict[str, Any], tensors: Tensors) -> None:
    """All but one module have their magnitudes: that one would be served as plain LoRA."""
    config["use_dora"] = True
    for name in sorted(name for name in tensors if name.endswith(".lora_B.weight"))[1:]:
        magnitude = name.replace(".lora_B.weight", ".lora_magnitude_vector")
        tensors[magnitude] = torch.ones(tensors[name].shape[0], dtype=tensors[name].dtype)


def _wrong_shape(config: dict[str, Any], tensors: Tensors) -> None:
    name = _first(tensors, ".lora_B.weight")
    tensors[name] = torch.cat([tensors[name], tensors[name][:64]])


def _rank_zero(config: dict[str, Any], tensors: Tensors) -> None:
    config["r"] = 0


def _not_a_number(config: dict[str, Any], tensors: Tensors) -> None:
    name = _first(tensors, ".lora_A.weight")
    tensors[name] = tensors[name].clone()
    tensors[name][0, 0] = float("nan")


def _no_match(config: dict[str, Any], tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[name.replace(".self_attn.", ".attention.")] = tensors.pop(name)


def _half_matches(config: dict[str, Any], tensors: Tensors) -> None:
    """One module of one layer goes by another name: what is left would load and be wrong."""
    name = min(name for name in tensors if ".self_attn." in name and name.endswith(".lora_A.weight"))
    tensors[name.replace(".self_attn.", ".attention.")] = tensors.pop(name)


def _unknown_type(config: dict[str, Any], tensors: Tensors) -> None:
    config["peft_type"] = "VERA"


def _changed_base(config: dict[str, Any], tensors: Tensors) -> None:
    """PEFT would modify the base at load for this initialiser, so the file alone does not say the result."""
    config["init_lora_weights"] = "pissa"


EDITS: dict[str, Callable[[dict[str, Any], Tensors], None]] = {
    "half-dora": _half_dora,
    "wrong-shape": _wrong_shape,
    "rank-zero": _rank_zero,
    "nan": _not_a_number,
    "no-match": _no_match,
    "half-matches": _half_matches,
    "unknown-type": _unknown_type,
    "changed-base": _changed_base,
}
BYTE_KINDS = ("truncated", "pickle")
KINDS = (*EDITS, *BYTE_KINDS)


def make_bad_adapter(kind: str, target: Path, source: Path = DEFAULT_SOURCE) -> Path:
    """Write ``target`` (a folder that must not exist) as a copy of ``source`` with the one fault ``kind``."""
    target.mkdir(parents=True)
    config: dict[str, Any] = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    tensors = load_file(source / WEIGHTS)
    if kind in EDITS:
        EDITS[kind](config, tensors)
    (target / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if kind == "pickle":
        torch.save(tensors, target / "adapter_model.bin")
        return target
    if kind == "truncated":
        shutil.copyfile(source / WEIGHTS, target / WEIGHTS)
        with (target / WEIGHTS).open("r+b") as handle:
            handle.truncate((source / WEIGHTS).stat().st_size * 2 // 3)
        return target
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write into")
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"any of {', '.join(KINDS)}; default all")
    parser.add_argument("--source", type=Path, default=DEFAULT_SOURCE, help="the good adapter (default: %(default)s)")
    arguments = parser.parse_args()
    kinds: list[str] = arguments.kinds or list(KINDS)
    if unknown := sorted(set(kinds) - set(KINDS)):
        parser.error(f"unknown kind {', '.join(unknown)}; choose from {', '.join(KINDS)}")
    for kind in kinds:
        print(make_bad_adapter(kind, arguments.out / kind, arguments.source))


if __name__ == "__main__":
    main()
