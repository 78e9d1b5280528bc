"""What validation refuses by one check alone: each of these would pass without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lorry.adapters.names import PREFIX
from lorry.adapters.probe import TOLERANCE
from lorry.adapters.validate import validate_directory

from . import test_copies as copies
from .craft import CONFIG, SPEC, tensor_name, tensors, write_adapter
from .judging import BASE, Q0, judge, some


def test_a_name_without_pefts_prefix_is_refused(tmp_path: Path) -> None:
    """PEFT would pass such a tensor over, and answer with less than the file says."""
    bare = {name.removeprefix(PREFIX): array for name, array in tensors().items()}
    row = judge(tmp_path, {}, {}, base=bare).check("tensors.names")
    assert row is not None
    assert row.outcome == "fail"


def test_coverage_counts_every_tensor_of_the_file(tmp_path: Path) -> None:
    row = judge(tmp_path, {}, {f"{BASE}.something": some(4)}).check("coverage")
    assert row is not None
    assert (row.outcome, row.value, row.limit) == ("fail", 8, 9)


def test_a_rounded_copy_of_a_linear_is_refused(tmp_path: Path) -> None:
    """A copy of embedding or head can stand in for the base's; nothing stands in for a linear."""
    weight = np.random.default_rng(1).standard_normal(SPEC.slice_shape("q_proj")).astype("<f4")
    base = copies.base(tmp_path / "base", {"model.layers.0.self_attn.q_proj.weight": weight})
    name = f"{Q0}.base_layer.weight"
    assert copies.row(copies.judge(tmp_path / "equal", {name: weight}, base)).outcome == "pass"
    assert copies.row(copies.judge(tmp_path / "rounded", {name: copies.bf16(weight)}, base)).outcome == "fail"


@pytest.mark.parametrize("layer", [0, 1])
def test_the_probe_refuses_what_is_no_number(tmp_path: Path, layer: int) -> None:
    """Every value is finite, and A x is not: inf times B's zeros is NaN in each answer, wherever the place stands."""
    arrays = tensors()
    arrays[tensor_name(layer, "v_proj", "A")][:] = 3e38
    arrays[tensor_name(layer, "v_proj", "B")][:] = 0
    row = validate_directory(write_adapter(tmp_path, CONFIG, arrays), SPEC).check("probe")
    assert row is not None
    assert (row.outcome, row.limit) == ("fail", TOLERANCE)
    assert f"at model.layers.{layer}.self_attn.v_proj" in row.message
