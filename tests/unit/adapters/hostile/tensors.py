"""Files that are well made and hold what cannot be applied: values, names and shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from tests.unit.adapters import craft
from tests.unit.adapters.hostile.kinds import WEIGHTS_NAME, Kind, Spoil, weights

Arrays = dict[str, "npt.NDArray[np.generic]"]
_NAMES = list(craft.tensors())
_A = [name for name in _NAMES if ".lora_A." in name]


def arrays(change: Callable[[Arrays, Random], object]) -> Spoil:
    def make(draw: Random) -> bytes:
        found: Arrays = dict(craft.tensors(seed=draw.randrange(1 << 30)))
        change(found, draw)
        return craft.safetensors(found)

    return weights(make)


def value(*values: float) -> Spoil:
    """One value of one tensor, in any of the dtypes."""

    def change(found: Arrays, draw: Random) -> None:
        stored = draw.choice(("<f4", "<f2", "<u2"))
        for name, array in found.items():
            wide = array.astype("<f4")
            if name == _NAMES[draw.randrange(len(_NAMES))] or name == _NAMES[-1]:
                wide.reshape(-1)[draw.randrange(wide.size)] = draw.choice(values)
            found[name] = (wide.view("<u4") >> 16).astype("<u2") if stored == "<u2" else wide.astype(stored)

    return arrays(change)


def moved(rename: Callable[[str, Random], str]) -> Spoil:
    """One tensor has another name."""

    def change(found: Arrays, draw: Random) -> None:
        name = draw.choice(_NAMES)
        array = found.pop(name)
        found[rename(name, draw)] = array

    return arrays(change)


def _resized(found: Arrays, draw: Random) -> None:
    name = draw.choice(_NAMES)
    rows, columns = found[name].shape
    wide = draw.choice(((rows, columns + 1), (rows, 1), (rows + 1, columns), (columns, rows)))
    found[name] = np.zeros(wide, "<f4")


def _flat(found: Arrays, draw: Random) -> None:
    name = draw.choice(_NAMES)
    found[name] = found[name].reshape(draw.choice(((-1,), (1, *found[name].shape), (1, 1, -1, 1))))


def _both_spellings(found: Arrays, draw: Random) -> None:
    name = draw.choice(_NAMES)
    found[name.removesuffix(".weight") + ".default.weight"] = found[name]


def _too_large(folder: Path, draw: Random) -> None:
    """Each value is finite, each product with the scale is not."""
    found = {name: array * (1e12 if ".lora_B." in name else 1) for name, array in craft.tensors().items()}
    config = craft.CONFIG | {"lora_alpha": draw.choice((9e29, -9e29))}
    craft.write_adapter(folder, config, {name: array.astype("<f4") for name, array in found.items()})


def _sparse_vocabulary(folder: Path, draw: Random) -> None:
    """Whole embedding and head of hundreds of thousands of rows: right in every shape, zeros without end, and hardly
    anything on the disk."""
    header, data = craft.header_of(craft.tensors())
    rows, hidden = draw.choice((400_000, 3_000_000, 30_000_000)), craft.SPEC.hidden
    end = len(data)
    for place in ("model.embed_tokens", "lm_head"):
        begin, end = end, end + rows * hidden * 2
        header[f"base_model.model.{place}.weight"] = {
            "dtype": "BF16",
            "shape": [rows, hidden],
            "data_offsets": [begin, end],
        }
    whole = craft.pack(header, data)
    craft.write_adapter(folder, craft.CONFIG | {"modules_to_save": ["embed_tokens", "lm_head"]}, whole)
    with (folder / WEIGHTS_NAME).open("ab") as handle:
        handle.truncate(len(whole) - len(data) + end)


TENSORS = (
    Kind("a sparse giant of a vocabulary", "vocabulary", "at most 65536 may be added", _sparse_vocabulary),
    Kind("values that a scale takes out of range", "weights.values", "leaves the range", _too_large),
    Kind("NaN", "weights.values", "NaN or infinity", value(float("nan")), 6),
    Kind("infinity", "weights.values", "NaN or infinity", value(float("inf"), float("-inf")), 6),
    Kind(
        "a layer that the base has not",
        "tensors.names",
        "matches no module",
        moved(
            lambda name, draw: name.replace("layers.0", f"layers.{draw.choice((2, 99, 10**30))}").replace(
                "layers.1", "layers.2"
            )
        ),
        6,
    ),
    Kind(
        "a layer written otherwise",
        "tensors.names|weights.tensor",
        "matches no module|a name is",
        moved(
            lambda name, draw: name.replace("layers.0", "layers.00").replace(
                "layers.1", f"layers.{draw.choice(('-1', '01', '1_0', '0x1', '1e0'))}"
            )
        ),
        6,
    ),
    Kind(
        "a module that the base has not",
        "tensors.names",
        "matches no module",
        moved(
            lambda name, draw: name.replace("self_attn", draw.choice(("mlp", "attn", "self_attn.self_attn", "")) or "x")
        ),
    ),
    Kind(
        "capitals",
        "tensors.names",
        "matches no module",
        moved(
            lambda name, draw: draw.choice((name.upper(), name.replace("_proj", "_PROJ"), name.replace("lora", "LoRA")))
        ),
    ),
    Kind(
        "no prefix",
        "tensors.names",
        "matches no module",
        moved(lambda name, draw: name.removeprefix(draw.choice(("base_model.", "base_model.model.")))),
    ),
    Kind(
        "more behind the name",
        "tensors.names",
        "matches no module",
        moved(lambda name, draw: name + draw.choice((".weight", ".0", "_2", ".default"))),
    ),
    Kind(
        "another adapter's name inside",
        "tensors.names",
        "matches no module",
        moved(lambda name, draw: name.removesuffix("weight") + "other.weight"),
    ),
    Kind("half a pair", "tensors.pairs", "has no lora_", arrays(lambda found, draw: found.pop(draw.choice(_NAMES)))),
    Kind("a tensor under two names", "tensors.names", "is there twice", arrays(_both_spellings)),
    Kind("a shape of another base", "tensors.shapes|rank", "has shape|has rank", arrays(_resized), 6),
    Kind("a factor of other dimensions", "tensors.shapes", "has shape", arrays(_flat)),
    Kind(
        "another rank than the config's",
        "rank",
        "has rank",
        weights(lambda draw: craft.safetensors(craft.tensors(rank=draw.choice((1, 3, 5, 16))))),
    ),
    Kind(
        "no tensor",
        "tensors.modules|coverage",
        "no pair|0 of 0|no tensor",
        weights(lambda draw: craft.pack({}, b"")),
        1,
    ),
    Kind(
        "modules that the config does not name",
        "config.target_modules",
        "does not target",
        weights(
            lambda draw: craft.safetensors(
                craft.tensors(slices=("q_proj", "v_proj", draw.choice(("k_proj", "up_proj"))))
            )
        ),
    ),
)

__all__ = ["TENSORS"]
