"""Every kind of bad adapter is refused with a row that names it; the hostile corpus in small."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorry.adapters.report import ValidationReport
from lorry.adapters.validate import Limits, validate_directory
from lorry.errors import AdapterRefused

from . import craft
from .craft import CONFIG, SPEC, tensor_name, tensors, write_adapter


def report(folder: Path, limits: Limits | None = None) -> ValidationReport:
    found = validate_directory(folder, SPEC, limits or Limits())
    json.dumps(found.to_dict(), allow_nan=False)
    return found


def test_a_good_adapter(tmp_path: Path) -> None:
    found = report(write_adapter(tmp_path))
    assert found.ok
    assert found.rank == 4
    assert found.plan is not None
    assert set(found.plan.modules) == {(layer, name) for layer in (0, 1) for name in ("q_proj", "v_proj")}
    module = found.plan.modules[1, "v_proj"]
    assert (module.rank, module.scale) == (4, 2.0)
    assert (module.a_tensor, module.b_tensor) == (tensor_name(1, "v_proj", "A"), tensor_name(1, "v_proj", "B"))
    coverage = found.check("coverage")
    assert coverage is not None
    assert coverage.message == "8 of 8 tensors applied"
    # Random numbers of that size are no trained weights, and the norms' row says so.
    assert {check.id for check in found.checks if check.outcome != "pass"} == {"weights.norms"}
    with pytest.raises(ValueError, match="not refused"):
        found.error()


def test_the_default_infix_and_harmless_files(tmp_path: Path) -> None:
    named = {name.replace(".weight", ".default.weight"): array for name, array in tensors().items()}
    folder = write_adapter(tmp_path, weights=named)
    for name in ("README.md", "LICENSE", ".gitattributes"):
        (folder / name).write_text("x")
    assert report(folder).ok


def test_a_module_missing_in_one_layer_stays_in_the_others(tmp_path: Path) -> None:
    """Field fault 8."""
    some = {name: array for name, array in tensors().items() if "layers.0.self_attn.q_proj" not in name}
    found = report(write_adapter(tmp_path, weights=some))
    assert found.plan is not None
    assert set(found.plan.modules) == {(0, "v_proj"), (1, "q_proj"), (1, "v_proj")}


Corrupt = Callable[[Path], object]


def config_with(**fields: Any) -> Corrupt:
    return lambda folder: write_adapter(folder, config={**CONFIG, **fields})


def weights_with(change: Callable[[dict[str, np.ndarray]], object], **fields: Any) -> Corrupt:
    def corrupt(folder: Path) -> None:
        arrays = tensors()
        change(arrays)
        write_adapter(folder, config={**CONFIG, **fields}, weights=arrays)

    return corrupt


def add_file(name: str, data: bytes = b"x") -> Corrupt:
    def corrupt(folder: Path) -> None:
        (write_adapter(folder) / name).write_bytes(data)

    return corrupt


def raw_weights(data: bytes) -> Corrupt:
    return lambda folder: write_adapter(folder, weights=data)


def link_weights(folder: Path) -> None:
    weights = write_adapter(folder) / "adapter_model.safetensors"
    weights.rename(folder.parent / "elsewhere.safetensors")
    weights.symlink_to(folder.parent / "elsewhere.safetensors")


def only_pickle(folder: Path) -> None:
    write_adapter(folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def put(name: str, array: np.ndarray) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda arrays: arrays.__setitem__(name, array.astype("<f4"))


def poke(name: str, value: float) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda arrays: np.put(arrays[name], 0, value)


A0, B0 = tensor_name(0, "q_proj", "A"), tensor_name(0, "q_proj", "B")
BASE = "base_model.model.model"
GOOD = craft.safetensors(tensors())

CORPUS: dict[str, tuple[Corrupt, str, str]] = {
    # kind: (how it is made, id of the check that fails, what its message says)
    "truncated weights": (raw_weights(GOOD[:-100]), "weights.file", "truncated: want"),
    "giant header length": (raw_weights(b"\xff" * 8 + GOOD[8:]), "weights.header", "over 1048576"),
    "pickle under a safe name": (raw_weights(pickle.dumps({"a": 1})), "weights.adapter_model.safetensors", "pickle"),
    "pickle beside it": (add_file("adapter_model.bin"), "files.adapter_model.bin", "never opened"),
    "pickle alone": (only_pickle, "files.adapter_model.safetensors", "absent"),
    "training arguments": (add_file("training_args.bin"), "files.training_args.bin", "never opened"),
    "own tokenizer": (add_file("tokenizer.json"), "text", "not on this machine"),
    "chat template": (add_file("chat_template.jinja"), "text", "not on this machine"),
    "a processor's template": (add_file("chat_template.json"), "files.chat_template.json", "is not read"),
    "parts of a tokenizer": (add_file("vocab.json"), "files.vocab.json", "without tokenizer.json"),
    "settings of a base": (add_file("config.json"), "files.config.json", "settings of a base model"),
    "a shard without an index": (
        add_file("adapter_model-00001-of-00002.safetensors"),
        "files.adapter_model-00001-of-00002.safetensors",
        "would not be applied",
    ),
    "second weights": (add_file("extra.safetensors"), "files.extra.safetensors", "would not be applied"),
    "unknown file": (add_file("run.sh"), "files.run.sh", "not a file of an adapter"),
    "symbolic link": (link_weights, "files.adapter_model.safetensors", "symbolic link"),
    "no config": (lambda f: os.remove(write_adapter(f) / "adapter_config.json"), "files.adapter_config.json", "absent"),
    "folder inside": (lambda f: (write_adapter(f) / "checkpoint-5").mkdir(), "files.checkpoint-5", "folder"),
    "r = 0": (config_with(r=0), "config.r", "at least 1"),
    "unknown peft_type": (config_with(peft_type="LOHA"), "config.peft_type", "'LOHA' is refused"),
    "NaN alpha": (
        lambda f: write_adapter(f, config=json.dumps({**CONFIG, "lora_alpha": float("nan")}).encode()),
        "config.adapter_config.json",
        "NaN",
    ),
    "NaN weight": (weights_with(poke(A0, np.nan)), "weights.values", "NaN or infinity"),
    "infinite weight": (weights_with(poke(B0, -np.inf)), "weights.values", "NaN or infinity"),
    "scaled out of range": (weights_with(poke(B0, 3e38), lora_alpha=800), "weights.values", "leaves the range"),
    "rank above the config's": (config_with(r=8), "rank", "has rank 4, the config says 8"),
    "rank pattern against the file": (
        config_with(rank_pattern={"v_proj": 2}),
        "rank",
        "v_proj.lora_A.weight has rank 4",
    ),
    "wrong K": (weights_with(put(A0, np.ones((4, 17)))), "tensors.shapes", "want [r, 16]"),
    "wrong N": (weights_with(put(B0, np.ones((17, 4)))), "tensors.shapes", "want [16, r]"),
    "transposed A": (weights_with(put(A0, np.ones((16, 4)))), "tensors.shapes", "has shape [16, 4]"),
    "a vector": (weights_with(put(A0, np.ones(16))), "tensors.shapes", "has shape [16]"),
    "missing B": (weights_with(lambda t: t.pop(B0)), "tensors.pairs", "q_proj has no lora_B"),
    "missing A": (weights_with(lambda t: t.pop(A0)), "tensors.pairs", "q_proj has no lora_A"),
    "no tensors": (raw_weights(craft.pack({}, b"")), "tensors.modules", "no tensor that is applied matches"),
    "another architecture": (
        weights_with(lambda t: [t.update({n.replace("self_attn", "attention"): t.pop(n)}) for n in list(t)]),
        "tensors.modules",
        "no tensor that is applied matches",
    ),
    "a layer too many": (
        weights_with(put(A0.replace("layers.0", "layers.2"), np.ones((4, 16)))),
        "tensors.names",
        "matches no module of the base",
    ),
    "layer 00": (
        weights_with(put(A0.replace("layers.0", "layers.00"), np.ones((4, 16)))),
        "tensors.names",
        "no module",
    ),
    "modules that the config does not target": (
        config_with(target_modules=["q_proj"]),
        "config.target_modules",
        "the config does not target it",
    ),
    "excluded modules": (config_with(exclude_modules=["v_proj"]), "config.target_modules", "v_proj"),
    "layers that are not transformed": (
        config_with(layers_to_transform=[0]),
        "config.target_modules",
        "model.layers.1.self_attn.q_proj",
    ),
    "a pattern that costs too much": (
        config_with(target_modules="(((.*){256}){256}){256}"),
        "config.patterns",
        "costs too much",
    ),
}


@pytest.mark.parametrize("kind", CORPUS)
def test_bad_adapter_is_refused(tmp_path: Path, kind: str) -> None:
    corrupt, id, message = CORPUS[kind]
    corrupt(tmp_path / "adapter")
    found = report(tmp_path / "adapter")
    assert not found.ok
    assert found.plan is None
    failed = {check.id: check.message for check in found.failed}
    assert message in failed[id], failed
    error = found.error()
    assert isinstance(error, AdapterRefused)
    assert {violation.field for violation in error.violations} == set(failed)
    assert len(str(error)) < 4000
    assert str(tmp_path) not in str(found.to_dict()), "a report says nothing of the machine's folders"


def test_rank_over_the_limit(tmp_path: Path) -> None:
    found = report(write_adapter(tmp_path), Limits(max_rank=3))
    check = found.check("rank")
    assert check is not None
    assert (check.outcome, check.value, check.limit) == ("fail", 4, 3)
    assert not found.ok


def test_too_many_files_and_no_folder(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    for index in range(40):
        (folder / f"{index}.json").write_text("")
    assert "files" in {check.id for check in report(folder).failed}
    assert "files" in {check.id for check in report(tmp_path / "absent").failed}
    (tmp_path / "link").symlink_to(folder)
    assert "files" in {check.id for check in report(tmp_path / "link").failed}


@pytest.mark.parametrize(("alpha", "outcome"), [(0, "warn"), (-4, "warn"), (8, "pass")])
def test_alpha_that_peft_takes_is_taken_with_a_warning(tmp_path: Path, alpha: float, outcome: str) -> None:
    found = report(write_adapter(tmp_path, config={**CONFIG, "lora_alpha": alpha}))
    check = found.check("scale")
    assert found.ok
    assert check is not None
    assert check.outcome == outcome


def test_a_delta_of_nothing_is_a_warning(tmp_path: Path) -> None:
    zeros = {name: np.zeros_like(array) if "lora_B" in name else array for name, array in tensors().items()}
    found = report(write_adapter(tmp_path, weights=zeros))
    check = found.check("weights.values")
    assert found.ok
    assert check is not None
    assert check.outcome == "warn"


def test_base_name_is_a_hint(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, config={**CONFIG, "base_model_name_or_path": "someone/else"})
    found = validate_directory(folder, SPEC, base_name="base")
    check = found.check("base")
    assert found.ok
    assert check is not None
    assert check.outcome == "warn"


def test_validation_needs_no_torch() -> None:
    code = (
        "import sys, lorry.adapters.validate, lorry.adapters.manifest;"
        "assert not {'torch', 'safetensors', 'grpc'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
