"""The probe passes for what the platform builds, and names the place where an image differs from the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from lorry.adapters import probe as module
from lorry.adapters.image.build import DeviceImage, build_image
from lorry.adapters.plan import AdapterPlan, EmbeddingPlan, HeadPlan, ModulePlan
from lorry.adapters.probe import TOLERANCE, probe
from lorry.layers.base_tensors import BaseTensors
from lorry.layers.extras import AdapterExtras
from lorry.layers.sites import Site
from lorry.layers.spec import EMBEDDING, FINAL_NORM, HEAD, DecoderSpec
from lorry.models.weights import read_spec
from tests.support.tiny_base import write_tiny_model

NAME = "adapter_model.safetensors"
TOKENS = (3, 300, 17)
Base = tuple[DecoderSpec, BaseTensors]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("probe") / "base"
    model = write_tiny_model(folder, "qwen2")
    assert model.config.tie_word_embeddings
    spec = read_spec(folder)
    return spec, BaseTensors(folder, spec, torch.float32)


class Writer:
    """Random tensors by name, with the plan that applies them."""

    def __init__(self, spec: DecoderSpec, base: BaseTensors) -> None:
        self.spec, self.base = spec, base
        self.tensors: dict[str, torch.Tensor] = {}
        self._draw = torch.Generator().manual_seed(0)

    def put(self, *shape: int, around: float = 0.0, size: float = 0.1) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors[name] = around + size * torch.randn(*shape, generator=self._draw)
        return name

    def lora(self, slice_name: str, rank: int, scale: float) -> ModulePlan:
        out, into = (
            (self.spec.vocabulary, self.spec.hidden) if slice_name == HEAD else self.spec.slice_shape(slice_name)
        )
        return ModulePlan(rank, scale, self.put(rank, into), self.put(out, rank))

    def plan(self) -> AdapterPlan:
        """Everything at once, each on a place of its own."""
        shape, vocabulary, hidden = self.spec.slice_shape, self.spec.vocabulary, self.spec.hidden
        modules = {
            (0, "q_proj"): replace(
                self.lora("q_proj", 3, 0.5), magnitude_tensor=self.put(shape("q_proj")[0], around=2)
            ),
            (0, "v_proj"): replace(self.lora("v_proj", 2, 2.0), b_bias_tensor=self.put(shape("v_proj")[0])),
            (0, "k_proj"): ModulePlan(bias_tensor=self.put(shape("k_proj")[0])),
            (0, "gate_proj"): ModulePlan(input_gain_tensor=self.put(1, shape("gate_proj")[1], around=1)),
            (0, "down_proj"): ModulePlan(input_gain_tensor=self.put(1, shape("down_proj")[1], around=1)),
            (1, "k_proj"): ModulePlan(output_gain_tensor=self.put(shape("k_proj")[0], 1, around=1)),
            (1, "o_proj"): self.lora("o_proj", 5, -1.0),
        }
        embedding = EmbeddingPlan(
            rank=2,
            scale=0.7,
            a_tensor=self.put(2, vocabulary),
            b_tensor=self.put(hidden, 2),
            magnitude_tensor=self.put(hidden, around=1),
            token_ids=TOKENS,
            rows_tensor=self.put(len(TOKENS), hidden),
        )
        head = HeadPlan(self.put(vocabulary, hidden), self.lora(HEAD, 4, 0.3), TOKENS, self.put(len(TOKENS), hidden))
        return AdapterPlan((NAME,), modules, {FINAL_NORM: self.put(hidden, around=1)}, embedding, head)

    def write(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        save_file(self.tensors, folder / NAME)


@pytest.fixture
def written(base: Base, tmp_path: Path) -> tuple[Path, AdapterPlan]:
    writer = Writer(*base)
    plan = writer.plan()
    writer.write(tmp_path)
    return tmp_path, plan


def test_it_passes_for_every_kind_at_once(base: Base, written: tuple[Path, AdapterPlan]) -> None:
    check = probe(*written, *base)
    assert check.outcome == "pass", check.message
    assert isinstance(check.value, float)
    assert check.value < TOLERANCE / 10
    assert "10 places" in check.message


def scaled(part: torch.Tensor | None) -> None:
    assert part is not None
    part.mul_(1.01)


DAMAGE: dict[str, Callable[[DeviceImage], None]] = {
    "model.layers.1.self_attn.o_proj": lambda i: scaled(i.sites[1, Site.O].b[0]),
    "model.layers.0.self_attn.q_proj": lambda i: scaled(extras(i).vectors[0, Site.QKV].gain),
    "model.layers.0.self_attn.k_proj": lambda i: scaled(addend(i)[64:96]),
    "model.layers.0.self_attn.v_proj": lambda i: scaled(addend(i)[96:]),
    "model.layers.0.mlp.gate_proj": lambda i: scaled(extras(i).vectors[0, Site.GATE_UP].in_gains[0]),
    "model.layers.0.mlp.down_proj": lambda i: scaled(extras(i).vectors[0, Site.DOWN].in_gains[0]),
    "model.layers.1.self_attn.k_proj": lambda i: scaled(extras(i).vectors[1, Site.QKV].gain),
    EMBEDDING: lambda i: scaled(embedding(i)),
    HEAD: lambda i: scaled(head(i)),
    FINAL_NORM: lambda i: scaled(extras(i).norms[FINAL_NORM]),
}


def extras(image: DeviceImage) -> AdapterExtras:
    assert image.extras is not None
    return image.extras


def addend(image: DeviceImage) -> torch.Tensor:
    found = extras(image).vectors[0, Site.QKV].addend
    assert found is not None
    return found


def embedding(image: DeviceImage) -> torch.Tensor | None:
    own = extras(image).embedding
    return None if own is None else own.rows


def head(image: DeviceImage) -> torch.Tensor | None:
    own = extras(image).head
    return None if own is None else own.b


@pytest.mark.parametrize("place", DAMAGE)
def test_it_names_the_place_that_differs_by_a_hundredth(
    base: Base, written: tuple[Path, AdapterPlan], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*arguments: object) -> DeviceImage:
        image = build_image(*arguments)  # type: ignore[arg-type]  # passed on
        DAMAGE[place](image)
        return image

    monkeypatch.setattr(module, "build_image", damaged)
    check = probe(*written, *base)
    assert check.outcome == "fail"
    assert check.message.split("at ")[1].startswith(place)


def test_a_row_without_length_is_refused(base: Base, tmp_path: Path) -> None:
    """B A is -W in one row: DoRA divides by its norm, which is zero."""
    spec, weights = base
    writer = Writer(spec, weights)
    plain = writer.lora("o_proj", 1, 1.0)
    weight = weights("model.layers.0.self_attn.o_proj.weight")
    assert plain.a_tensor is not None
    assert plain.b_tensor is not None
    writer.tensors[plain.a_tensor] = -weight[2:3].clone()
    writer.tensors[plain.b_tensor] = torch.zeros(weight.shape[0], 1)
    writer.tensors[plain.b_tensor][2] = 1.0
    plan = AdapterPlan((NAME,), {(0, "o_proj"): replace(plain, magnitude_tensor=writer.put(weight.shape[0], around=1))})
    writer.write(tmp_path)
    check = probe(tmp_path, plan, *base)
    assert check.outcome == "fail"
    assert "no length" in check.message


def test_without_the_base_what_needs_it_is_refused(base: Base, written: tuple[Path, AdapterPlan]) -> None:
    check = probe(*written, base[0])
    assert check.outcome == "fail"
    assert "base's weights are needed" in check.message


class Widest(TorchDispatchMode):
    """Elements of the largest float64 tensor that is made meanwhile."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float64:
            self.elements = max(self.elements, made.numel())
        return made


@pytest.mark.parametrize("dora", [False, True])
def test_embedding_and_head_are_widened_block_by_block(
    base: Base, tmp_path: Path, dora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 152,000 ids and 896 hidden one such matrix in float64 is 1.1 GB, and the sandbox would refuse the adapter."""
    spec, weights = base
    writer = Writer(spec, weights)
    plan = writer.plan()
    head, embedding = plan.head, plan.embedding
    assert head is not None
    assert head.module is not None
    assert embedding is not None
    if dora:
        gained = replace(head.module, magnitude_tensor=writer.put(spec.vocabulary, around=1))
        plan = replace(plan, head=HeadPlan(head.weight_tensor, gained))
    else:
        plan = replace(plan, embedding=replace(embedding, weight_tensor=head.weight_tensor))
    writer.tensors = {name: tensor for name, tensor in writer.tensors.items() if name in plan.names()}
    writer.write(tmp_path)
    monkeypatch.setattr(module, "_BLOCK_ROWS", 32)
    with Widest() as widest:
        check = probe(tmp_path, plan, *base)
    assert check.outcome == "pass", check.message
    assert 0 < widest.elements < spec.vocabulary * spec.hidden
