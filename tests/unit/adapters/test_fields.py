"""Every field and initialiser of the installed PEFT is in the table, and does what the table says of it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import typing
import warnings
from typing import Any

import peft
import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import layer
from peft.utils import PeftType
from transformers import LlamaConfig, LlamaForCausalLM

from lorry.adapters.config.fields import FIELDS, FORMER, INITIALISERS, FieldRule, initialiser
from lorry.adapters.config.read import ConfigRefused, parse_config

from . import craft

# PEFT asks transformers for a property that it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

CONFIGS = {"LORA": LoraConfig, "IA3": IA3Config}
IA3: dict[str, Any] = {
    "peft_type": "IA3",
    "task_type": "CAUSAL_LM",
    "target_modules": ["q_proj", "down_proj"],
    "feedforward_modules": ["down_proj"],
}


def peft_model(**fields: Any) -> PeftModel:
    sizes: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24, "vocab_size": 32}
    base = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes))
    return get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], **fields))


def problems(base: dict[str, Any], **fields: Any) -> dict[str, str]:
    with pytest.raises(ConfigRefused) as caught:
        parse_config({**base, **fields})
    return {problem.field: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize("peft_type", CONFIGS)
def test_the_table_knows_every_field_of_pefts_config(peft_type: str) -> None:
    fields = {field.name for field in dataclasses.fields(CONFIGS[peft_type])}
    table = dict(FIELDS)[peft_type]  # type: ignore[index]  # a name out of a loop
    assert fields - set(table) == set(), "decide what becomes of it"
    assert set(table) - fields == set(), "no longer a field of PEFT"
    rules: list[FieldRule] = [*table.values(), *FORMER.values()]
    assert all(rule.reason for rule in rules)
    assert all(rule.remedy and rule.allowed for rule in rules if rule.treatment == "refused")
    assert not any(name in field for name in FORMER for field in (fields,))


def stated_initialisers() -> set[Any]:
    """Of the field's type, of its help and of the code that carries them out."""
    field = next(field for field in dataclasses.fields(LoraConfig) if field.name == "init_lora_weights")
    hint = typing.get_type_hints(LoraConfig)["init_lora_weights"]
    found: set[Any] = {True, False, *field.metadata["lora_variants"]}
    for part in typing.get_args(hint):
        found.update(typing.get_args(part))
    code = inspect.getsource(layer.LoraLayer.update_layer) + inspect.getsource(layer.LoraLayer.reset_lora_parameters)
    code += inspect.getsource(LoraConfig)
    pattern = r"init_lora_weights\)?(?:\.lower\(\))?(?: ==|\.startswith\(| != ) ?\(?[\"']([a-z_]+)[\"']"
    found.update(re.findall(pattern, code))
    return found


@pytest.mark.parametrize("value", ["Gaussian", "MiCA", "EVA"])
def test_initialisers_are_read_in_small_letters(value: str) -> None:
    found = initialiser(value)
    assert found is not None
    assert found.served
    refused = initialiser("OLoRA")
    assert refused is not None
    assert not refused.served


def test_the_table_knows_every_initialiser() -> None:
    stated = stated_initialisers()
    assert {"pissa", "olora", "lora_ga", "loftq", "gaussian", "mica", "eva"} <= stated, "the source reads otherwise now"
    assert {value for value in stated if initialiser(value) is None} == set(), "decide what becomes of it"
    assert all(any(known.covers(value) for value in stated) for known in INITIALISERS), "no longer one of PEFT's"


def test_a_peft_that_brings_a_field_would_fail_the_first_test() -> None:
    """The comparison looks at the class itself, whatever it has by then."""

    @dataclasses.dataclass
    class Newer(LoraConfig):
        halves_the_delta: bool = False

    fields = {field.name for field in dataclasses.fields(Newer)}
    assert fields - set(FIELDS["LORA"]) == {"halves_the_delta"}


@pytest.mark.parametrize("known", [known for known in INITIALISERS if known.served], ids=lambda known: str(known.value))
def test_initialisers_that_are_served_leave_the_base_alone(known: Any) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24, "vocab_size": 32}
    base = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes))
    before = {name: value.clone() for name, value in base.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT asks for data for eva
        config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=known.value)
        model = get_peft_model(copy.deepcopy(base), config)
    after = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): value
        for name, value in model.state_dict().items()
        if "lora_" not in name
    }
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("peft_type", [kind.value for kind in PeftType])
def test_every_other_peft_type_is_refused_by_name(peft_type: str) -> None:
    if peft_type in CONFIGS:
        base = IA3 if peft_type == "IA3" else craft.CONFIG
        assert parse_config(base).peft_type == peft_type
        return
    message = problems({"peft_type": peft_type, "target_modules": ["q_proj"]})["peft_type"]
    assert repr(peft_type) in message
    assert "LORA and IA3 are served" in message


SHARED: list[tuple[str, Any]] = [
    ("task_type", "SEQ_CLS"),
    ("target_modules", None),
    ("target_modules", []),
    ("target_modules", 5),
    ("target_modules", [1]),
    ("target_modules", "(.*"),
    ("exclude_modules", {"a": 1}),
    ("modules_to_save", "norm"),
    ("modules_to_save", ["norm|lm_head"]),
    ("modules_to_save", [""]),
    ("modules_to_save", [1]),
    ("fan_in_fan_out", "yes"),
    ("auto_mapping", {"base_model_class": "GPT2LMHeadModel"}),
    ("base_model_name_or_path", 5),
    ("enable_lora", [True, False]),
    ("an_unknown_field", None),
]
REFUSED: dict[str, list[tuple[str, Any]]] = {
    "LORA": [
        *SHARED,
        ("peft_type", "lora"),
        ("peft_type", None),
        ("peft_type", ["LORA"]),
        ("r", 0),
        ("r", -1),
        ("r", 4.0),
        ("r", True),
        ("r", "8"),
        ("lora_alpha", "16"),
        ("lora_alpha", None),
        ("lora_alpha", 10**400),
        ("lora_alpha", 1e300),
        ("use_rslora", 1),
        ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", ["q_proj"]),
        ("rank_pattern", {"(": 4}),
        ("alpha_pattern", {"q_proj": "x"}),
        ("alpha_pattern", {f"[q{n}]": 1 for n in range(100)}),
        ("layers_to_transform", "1"),
        ("layers_to_transform", [True]),
        ("layers_pattern", "layers"),
        ("bias", "some"),
        ("bias", None),
        ("bias", ["all"]),
        ("lora_bias", 1),
        ("use_dora", 1),
        ("ensure_weight_tying", "true"),
        ("trainable_token_indices", 5),
        ("trainable_token_indices", [-1]),
        ("trainable_token_indices", [1, 1]),
        ("trainable_token_indices", [True]),
        ("trainable_token_indices", [1 << 40]),
        ("trainable_token_indices", {"wte": [1]}),
        ("trainable_token_indices", {"embed_tokens": [1], "model.embed_tokens": [1]}),
        ("trainable_token_indices", {"lm_head": 7}),
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "corda"),
        ("init_lora_weights", "loftq"),
        ("init_lora_weights", "lora_ga"),
        ("init_lora_weights", "something_new"),
        ("init_lora_weights", None),
        ("init_lora_weights", 1),
        ("megatron_config", {"a": 1}),
        ("velora_config", {}),
        ("kasa_config", {}),
        ("alora_invocation_tokens", [1]),
        ("use_qalora", True),
        ("monteclora_config", {}),
        ("layer_replication", [[0, 2]]),
        ("target_parameters", ["x"]),
        ("use_bdlora", {}),
        ("arrow_config", {}),
        ("feedforward_modules", []),
    ],
    "IA3": [
        *SHARED,
        ("feedforward_modules", None),
        ("feedforward_modules", ["up_proj"]),
        ("feedforward_modules", [3]),
        ("feedforward_modules", "(.*"),
        ("r", 8),
        ("use_dora", False),
    ],
}
CASES = [(kind, field, value) for kind, cases in REFUSED.items() for field, value in cases]


@pytest.mark.parametrize(("kind", "field", "value"), CASES, ids=[f"{k}-{f}={str(v)[:20]}" for k, f, v in CASES])
def test_refused_by_field_name_with_a_remedy(kind: str, field: str, value: Any) -> None:
    base = IA3 if kind == "IA3" else craft.CONFIG
    parse_config(base)
    message = problems(base, **{field: value})[field]
    assert message.startswith(f"{field}: ")
    assert 20 < len(message) < 500


def test_every_refused_field_of_the_table_is_tried() -> None:
    for kind, table in FIELDS.items():
        tried = {field for field, _ in REFUSED[kind]}
        assert {field for field, rule in table.items() if rule.treatment == "refused"} <= tried
    assert {field for field, rule in FORMER.items() if rule.treatment == "refused"} <= {field for field, _ in SHARED}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"lora_bias": True, "use_dora": True}, "lora_bias"),
        ({"lora_bias": True, "init_lora_weights": "gaussian"}, "lora_bias"),
        ({"use_dora": True, "init_lora_weights": "mica"}, "use_dora"),
    ],
)
def test_what_peft_does_not_combine_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=r"is only supported with|is not supported for DoRA|unsupported variant"):
        peft_model(**fields)
    assert field in problems(craft.CONFIG, **fields)


def test_many_unknown_fields_are_few_rows() -> None:
    found = problems(craft.CONFIG, **{f"made_up_{n}": n for n in range(3000)})
    assert len(found) == 51
    assert "3000 unknown fields" in found["adapter_config.json"]


def test_harmless_fields_take_any_value() -> None:
    for kind, table in FIELDS.items():
        base = IA3 if kind == "IA3" else craft.CONFIG
        odd = {field: {"any": ["thing"]} for field, rule in table.items() if rule.treatment == "harmless"}
        assert odd
        parse_config({**base, **odd, "merge_weights": False, "enable_lora": None})


def test_peft_is_the_version_that_the_table_was_made_for() -> None:
    """A reminder: read the notes of a new minor version before moving this."""
    assert peft.__version__.startswith("0.21.")
