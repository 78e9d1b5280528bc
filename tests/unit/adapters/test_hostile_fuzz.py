"""Good adapters, changed at random: refused in rows, or accepted with every tensor applied as it lies in the file.

Never an exception: in the process with limits that would be the row ``sandbox.crash``.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry.adapters.report import ValidationReport
from lorry.adapters.sandbox.examine import examine
from lorry.adapters.shards import open_weights
from lorry.adapters.validate import validate_directory
from tests.unit.adapters import craft
from tests.unit.adapters.hostile.headers import DATA, GOOD, HEADER
from tests.unit.adapters.hostile.kinds import CONFIG_NAME, WEIGHTS_NAME

_ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    4,
    8,
    65,
    1 << 31,
    1 << 63,
    1 << 200,
    0.5,
    4.0,
    1e30,
    1e308,
    "",
    "q_proj",
    "F16",
    "4",
    "\x00",
    "\ud800",
    "../x",
    ".*",
    "(a+)+",
    "all-linear",
    "x" * 3000,
    [],
    [0],
    [0, 256],
    [4, 16],
    ["q_proj"],
    {},
    {"q_proj": 4},
    {"": ""},
]
_NAMES = [
    *HEADER,
    *craft.CONFIG,
    "rank_pattern",
    "alpha_pattern",
    "use_dora",
    "use_rslora",
    "bias",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "layers_to_transform",
    "layers_pattern",
    "exclude_modules",
    "init_lora_weights",
    "fan_in_fan_out",
    "auto_mapping",
    "__metadata__",
    "dtype",
    "shape",
    "data_offsets",
    "base_model.model.lm_head.weight",
    "feedforward_modules",
    "base_model.model.model.embed_tokens.lora_embedding_A",
    "base_model.model.model.norm.weight",
    "",
    "\x00",
    "é",
]
values = st.one_of(st.sampled_from(_ODD), st.integers(-3, 1 << 40), st.floats(allow_nan=True), st.text(max_size=9))


def places(node: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    keys: list[Any] = [*node] if isinstance(node, dict) else [*range(len(node))] if isinstance(node, list) else []
    found = [(node, key) for key in keys]
    for key in keys:
        found.extend(places(node[key]))
    return found


@st.composite
def changed_json(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """A few values replaced, dropped, renamed or added, anywhere."""
    found = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        at = places(found)
        container, key = draw(st.sampled_from(at)) if at else (found, "r")
        change = draw(st.sampled_from(("replace", "drop", "rename", "add", "swap")))
        if change == "replace" or not at:
            container[key] = copy.deepcopy(draw(values))
        elif change == "drop":
            del container[key]
        elif change == "rename" and isinstance(container, dict):
            container[draw(st.sampled_from(_NAMES))] = container.pop(key)
        elif change == "add" and isinstance(container, dict):
            container[draw(st.sampled_from(_NAMES))] = copy.deepcopy(draw(values))
        else:
            other, other_key = draw(st.sampled_from(at))
            container[key] = copy.deepcopy(other[other_key])
    return json.dumps(found).encode("ascii")


@st.composite
def changed_bytes(draw: st.DrawFn, good: bytes, front: int) -> bytes:
    """Bytes turned, cut out, doubled or put in, more often among the first ``front``."""
    found = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        end = max(min(len(found), draw(st.sampled_from((9, front, len(good))))), 1)
        at = draw(st.integers(0, end - 1))
        length = draw(st.sampled_from((1, 2, 8, 300)))
        change = draw(st.sampled_from(("turn", "cut", "double", "insert", "end")))
        if change == "turn":
            found[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif change == "cut":
            del found[at : at + length]
        elif change == "double":
            found[at:at] = found[at : at + length]
        elif change == "insert":
            found[at:at] = draw(st.binary(min_size=1, max_size=9))
        else:
            del found[at:]
    return bytes(found)


def judge(folder: Path, validate: Callable[[Path], ValidationReport]) -> ValidationReport:
    report = validate(folder)
    assert report.checks
    assert report.ok == (not report.failed)
    assert not any(check.id.startswith("sandbox.") for check in report.checks), report.failed
    json.dumps([check.message for check in report.checks]).encode("ascii")
    return report


def sound(folder: Path, report: ValidationReport) -> None:
    """What was accepted is what another reader reads, whole and finite, and each pair's rank is the config's."""
    plan = report.plan
    assert plan is not None
    theirs = safetensors.numpy.load((folder / WEIGHTS_NAME).read_bytes())
    assert plan.names() | {*plan.copies} == {*theirs}
    with open_weights(folder) as weights:
        for name, array in theirs.items():
            assert np.isfinite(array).all()
            np.testing.assert_array_equal(weights.read_tensor(name), array.astype(np.float32))
    config = json.loads((folder / CONFIG_NAME).read_text())
    for (layer, name), module in plan.modules.items():
        if module.a_tensor is not None and module.b_tensor is not None:
            out_features, in_features = craft.SPEC.slice_shape(name)
            assert 0 <= layer < craft.SPEC.layers
            assert theirs[module.a_tensor].shape == (module.rank, in_features)
            assert theirs[module.b_tensor].shape == (out_features, module.rank)
            assert np.isfinite(module.scale)
    assert config.get("peft_type") in ("LORA", "IA3")


def check(config: bytes | None, weights: bytes | None) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = craft.write_adapter(Path(root) / "a", config, weights)
        report = judge(folder, lambda path: validate_directory(path, craft.SPEC, probe=False))
        if report.ok:
            sound(folder, report)


def test_what_is_not_changed_is_sound() -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = craft.write_adapter(Path(root) / "a")
        report = validate_directory(folder, craft.SPEC, probe=False)
        sound(folder, report)
        craft.write_adapter(folder, None, craft.tensors(rank=3))
        with pytest.raises(AssertionError):
            sound(folder, report)


@settings(max_examples=150, deadline=None)
@given(config=changed_json(craft.CONFIG))
def test_a_changed_config(config: bytes) -> None:
    check(config, None)


@settings(max_examples=150, deadline=None)
@given(header=changed_json(HEADER))
def test_a_changed_header(header: bytes) -> None:
    check(None, craft.pack(header, DATA))


@settings(max_examples=150, deadline=None)
@given(weights=changed_bytes(GOOD, len(GOOD) - len(DATA)))
def test_changed_bytes_of_the_weights(weights: bytes) -> None:
    check(None, weights)


@settings(max_examples=100, deadline=None)
@given(config=changed_bytes(json.dumps(craft.CONFIG).encode(), 60))
def test_changed_bytes_of_the_config(config: bytes) -> None:
    check(config, None)


@settings(max_examples=8, deadline=None)
@given(config=changed_json(craft.CONFIG), weights=changed_bytes(GOOD, len(GOOD) - len(DATA)))
def test_the_process_says_what_validation_here_says(config: bytes, weights: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = craft.write_adapter(Path(root) / "a", config, weights)
        here = validate_directory(folder, craft.SPEC)
        report = judge(folder, lambda path: examine(path, craft.BASE_CONFIG))
        assert report.ok == here.ok
        assert len(report.checks) == len(here.checks)
