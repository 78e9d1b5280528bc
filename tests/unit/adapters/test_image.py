"""PEFT's own layers are the oracle: the image's delta equals theirs, for configs of every served kind."""

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from lorry.adapters.image.build import DeviceImage, build_image, checksum
from lorry.adapters.validate import validate_directory
from lorry.errors import AdapterLoadFailed
from lorry.ids import AdapterDigest
from lorry.layers.sites import SITE_SLICES, SLICE_SITE, module_name
from lorry.layers.spec import DecoderSpec

from . import craft

# PEFT asks transformers for a property that it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

BASE = {**craft.BASE_CONFIG, "num_hidden_layers": 3}
SPEC = DecoderSpec.from_config(BASE)
DIGEST = AdapterDigest("d" * 64)
ALL = [name for names in SITE_SLICES.values() for name in names]


def base_model() -> Any:
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**{key: value for key, value in BASE.items() if key != "model_type"}))
    return model.eval()


CONFIGS: dict[str, dict[str, Any]] = {
    "all seven": {"target_modules": ALL, "r": 4, "lora_alpha": 8},
    "all-linear": {"target_modules": "all-linear", "r": 2, "lora_alpha": 3},
    "rslora": {"target_modules": ["q_proj", "down_proj"], "r": 8, "lora_alpha": 8, "use_rslora": True},
    "one slice": {"target_modules": ["k_proj"], "r": 1},
    "regex": {"target_modules": r".*\.1\.(self_attn|mlp)\.(v|up)_proj", "r": 5, "lora_alpha": 2},
    "layers": {"target_modules": ["q_proj", "gate_proj"], "layers_to_transform": [0, 2], "r": 3},
    "excluded": {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r".*\.1\..*", "r": 3},
    "patterns": {
        "target_modules": ALL,
        "r": 4,
        "lora_alpha": 7,
        "rank_pattern": {"q_proj": 2, "layers.1.self_attn.v_proj": 9, r".*\.2\.mlp\..*": 1},
        "alpha_pattern": {"v_proj": 0.5, "layers.0.mlp.up_proj": 30},
    },
    "patterns and rslora": {
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "r": 4,
        "lora_alpha": 7,
        "use_rslora": True,
        "rank_pattern": {"k_proj": 6, "v_proj": 1},
        "alpha_pattern": {"k_proj": 5},
    },
    "negative alpha": {"target_modules": ["o_proj"], "r": 2, "lora_alpha": -4},
    "random start": {"target_modules": ["q_proj"], "r": 2, "init_lora_weights": False},
}


def saved(folder: Path, fields: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """An adapter with random A and B, saved by PEFT."""
    model = get_peft_model(base_model(), LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.1, **fields))
    draw = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=draw).to(dtype)
    model.save_pretrained(str(folder))


def image_of(folder: Path, dtype: torch.dtype = torch.float32) -> DeviceImage:
    report = validate_directory(folder, SPEC)
    assert report.plan is not None, report.failed
    return build_image(folder, report.plan, SPEC, dtype, DIGEST)


def delta(image: DeviceImage, layer: int, name: str, x: torch.Tensor) -> torch.Tensor | None:
    site, index = SLICE_SITE[name]
    found = image.site(layer, site)
    b = None if found is None else found.b[index]
    if found is None or b is None:
        return None
    return x @ found.a[:, index].T @ b


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_delta_is_pefts(tmp_path: Path, kind: str, stored: torch.dtype) -> None:
    saved(tmp_path, CONFIGS[kind], stored)
    (tmp_path / "README.md").unlink(missing_ok=True)
    peft_model = PeftModel.from_pretrained(base_model(), tmp_path).eval()
    image = image_of(tmp_path)
    seen = 0
    for layer in range(SPEC.layers):
        for name in ALL:
            module: Any = peft_model.get_submodule(f"base_model.model.{module_name(layer, name)}")
            x = torch.randn(5, SPEC.slice_shape(name)[1])
            ours = delta(image, layer, name, x)
            if not hasattr(module, "lora_A"):
                assert ours is None
                continue
            with torch.no_grad():
                theirs = module(x) - module.base_layer(x)
            assert ours is not None
            # The oracle's difference carries the rounding of the base's own product.
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)
            seen += 1
    plan = validate_directory(tmp_path, SPEC).plan
    assert plan is not None
    assert seen == len(plan.modules) > 0


@pytest.mark.parametrize("kind", ["patterns", "patterns and rslora", "rslora"])
def test_whole_model_logits_are_pefts(tmp_path: Path, kind: str) -> None:
    """The image's deltas put into a bare transformers model, against PEFT's whole model."""
    saved(tmp_path, CONFIGS[kind])
    ids = torch.randint(0, 32, (1, 9))
    peft_model = PeftModel.from_pretrained(base_model(), tmp_path).eval()
    image = image_of(tmp_path)
    bare = base_model()
    for layer in range(SPEC.layers):
        for name in ALL:

            def hook(
                module: torch.nn.Module,
                args: tuple[Any, ...],
                output: torch.Tensor,
                at: tuple[int, str] = (layer, name),
            ) -> torch.Tensor | None:
                added = delta(image, at[0], at[1], args[0])
                return None if added is None else output + added

            bare.get_submodule(module_name(layer, name)).register_forward_hook(hook)
    with torch.no_grad():
        torch.testing.assert_close(bare(ids).logits, peft_model(ids).logits, rtol=1e-4, atol=1e-4)


def test_layout(tmp_path: Path) -> None:
    saved(tmp_path, CONFIGS["patterns"])
    image = image_of(tmp_path, torch.bfloat16)
    assert (image.rank, image.dtype, image.digest) == (9, torch.bfloat16, DIGEST)
    assert list(image.sites) == [(site.layer, site.site) for site in SPEC.lora_sites()]
    for lora_site in SPEC.lora_sites():
        found = image.site(lora_site.layer, lora_site.site)
        assert found is not None
        assert found.a.shape == (9, len(lora_site.slices), lora_site.in_features)
        assert found.a.is_contiguous()
        for part, out_features in zip(found.b, lora_site.out_features, strict=True):
            assert part is not None
            assert part.shape == (9, out_features)
            assert part.is_contiguous()
            assert part.dtype == torch.bfloat16
    qkv = image.sites[0, SLICE_SITE["q_proj"][0]]
    assert not qkv.a[2:, 0].any(), "rows beyond a slice's own rank are zeros"
    assert qkv.b[0] is not None
    assert not qkv.b[0][2:].any()
    assert image.nbytes == sum(site.nbytes for site in image.sites.values())


def test_sparse_sites(tmp_path: Path) -> None:
    saved(tmp_path, CONFIGS["layers"])
    image = image_of(tmp_path)
    assert {layer for layer, _ in image.sites} == {0, 2}
    qkv = image.sites[0, SLICE_SITE["q_proj"][0]]
    assert [part is None for part in qkv.b] == [False, True, True]
    assert not qkv.a[:, 1:].any()


def test_scale_is_applied_in_float32_before_the_cast(tmp_path: Path) -> None:
    fields = {"target_modules": ["q_proj"], "r": 3, "lora_alpha": 1}
    saved(tmp_path, fields, torch.bfloat16)
    image = image_of(tmp_path, torch.bfloat16)
    model = PeftModel.from_pretrained(base_model(), tmp_path)
    module: Any = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    weight = module.lora_B["default"].weight
    part = image.sites[0, SLICE_SITE["q_proj"][0]].b[0]
    assert part is not None
    assert torch.equal(part, (weight.detach().float() * (1 / 3)).T.to(torch.bfloat16))


def test_checksum_sees_every_byte(tmp_path: Path) -> None:
    saved(tmp_path, CONFIGS["layers"])
    image, again = image_of(tmp_path), image_of(tmp_path)
    assert image.checksum == again.checksum == checksum(image.sites)
    assert image.intact()
    key = next(iter(image.sites))
    part = image.sites[key].b[0]
    assert part is not None
    part[0, 0] += 1
    assert not image.intact()


def test_a_plan_that_is_not_of_this_file_is_refused(tmp_path: Path) -> None:
    craft.write_adapter(tmp_path / "a")
    craft.write_adapter(tmp_path / "b", weights=craft.tensors(rank=3))
    report = validate_directory(tmp_path / "a", craft.SPEC)
    assert report.plan is not None
    with pytest.raises(AdapterLoadFailed, match="want shape"):
        build_image(tmp_path / "b", report.plan, craft.SPEC, torch.float32, DIGEST)


def test_a_plan_of_another_base_is_refused(tmp_path: Path) -> None:
    craft.write_adapter(tmp_path)
    report = validate_directory(tmp_path, craft.SPEC)
    assert report.plan is not None
    smaller = DecoderSpec.from_config({**craft.BASE_CONFIG, "num_hidden_layers": 1})
    with pytest.raises(AdapterLoadFailed, match="2 of 4 modules"):
        build_image(tmp_path, report.plan, smaller, torch.float32, DIGEST)


def test_out_of_the_engines_range_is_refused(tmp_path: Path) -> None:
    arrays = craft.tensors()
    arrays[craft.tensor_name(0, "q_proj", "B")][0, 0] = 60000
    craft.write_adapter(tmp_path, weights=arrays)
    report = validate_directory(tmp_path, craft.SPEC)
    assert report.plan is not None
    build_image(tmp_path, report.plan, craft.SPEC, torch.bfloat16, DIGEST)
    with pytest.raises(AdapterLoadFailed, match="outside the range"):
        build_image(tmp_path, report.plan, craft.SPEC, torch.float16, DIGEST)


@pytest.mark.parametrize("initialiser", ["pissa", "olora"])
def test_what_peft_saves_and_is_right_on_another_base_alone_is_refused(
    tmp_path: Path, initialiser: Literal["pissa", "olora"]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT remarks on unusual choices
        config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=initialiser)
        get_peft_model(base_model(), config).save_pretrained(str(tmp_path))
    report = validate_directory(tmp_path, SPEC)
    assert "config.init_lora_weights" in {check.id for check in report.failed}


def test_float32_is_not_copied_from_a_shared_map(tmp_path: Path) -> None:
    """The image owns its bytes: the file may go once it is built."""
    craft.write_adapter(tmp_path)
    report = validate_directory(tmp_path, craft.SPEC)
    assert report.plan is not None
    image = build_image(tmp_path, report.plan, craft.SPEC, torch.float32, DIGEST)
    os_path = tmp_path / "adapter_model.safetensors"
    with open(os_path, "r+b") as handle:
        handle.seek(-64, 2)
        handle.write(np.full(16, 9.0, dtype="<f4").tobytes())
    assert image.intact()
