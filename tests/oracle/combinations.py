"""Adapters drawn at random over everything that PEFT's configs can combine, and what must become of each.

Three of them at a time on one base: each gives PEFT's logits, alone and in one batch with the others, or is refused.
A refusal is right only where PEFT's own answer is not determined by the files, or where ``refusable`` says why.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as draw_from
from hypothesis import strategies as st

from lorry.adapters.validate import validate_directory
from tests.oracle.worlds import LARGE, LARGER_IDS, WITHIN, Made, World
from tests.support.kinds import LARGER, LINEARS
from tests.support.zoo import Kind, PeftRefused, make

TARGETS: Sequence[Any] = (
    "all-linear",
    r".*\.(q|k|v)_proj",
    r"model\.layers\.[0-9]+\.mlp\.(gate|up|down)_proj",
    r"(?:.*_proj|^lm_head$)",
    r".*(embed_tokens|o_proj|lm_head)",
    r"^model\.layers\.1\..*[^k]_proj$",
    None,
)
NAMES = (
    *LINEARS,
    "self_attn.q_proj",
    "mlp.up_proj",
    "layers.1.self_attn.v_proj",
    "model.layers.0.mlp.down_proj",
    "lm_head",
    "embed_tokens",
)
EXCLUDED: Sequence[Any] = (
    ["k_proj"],
    ["layers.0.self_attn.q_proj", "mlp.gate_proj"],
    r".*\.1\.mlp.*",
    ["lm_head"],
    r".*(v_proj|embed_tokens)",
)
PATTERNS = (
    "q_proj",
    "layers.0.self_attn.q_proj",
    r"layers\.1\..*",
    r"^model\.layers\.0\.mlp\.up_proj",
    ".*mlp.*",
    "o_proj|down_proj",
    "lm_head",
    "embed_tokens",
    "_proj",
)
SAVED = ("norm", "model.norm", "input_layernorm", "layers.0.post_attention_layernorm", "lm_head", "embed_tokens")


def _sometimes(strategy: st.SearchStrategy[Any], times: int = 3) -> st.SearchStrategy[Any]:
    """None more often than not."""
    return st.one_of(*[st.none()] * times, strategy)


_some_names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True)
_tokens = st.lists(st.sampled_from([1, 5, 7, 9, 64, 300, 319, 0]), min_size=1, max_size=4, unique=True)


@st.composite
def lora_kinds(draw: Callable[[Any], Any]) -> Kind:
    r = draw(st.sampled_from([1, 2, 3, 5, 8, 16, 20]))
    targets = draw(st.one_of(_some_names, _some_names, st.sampled_from(TARGETS)))
    config: dict[str, Any] = {
        "r": r,
        "lora_alpha": draw(st.sampled_from([1, 2 * r, 7, -r])),
        "target_modules": targets,
        "use_rslora": draw(st.booleans()),
        "use_dora": draw(st.booleans()),
        "bias": draw(st.sampled_from(["none", "none", "all", "lora_only"])),
        "fan_in_fan_out": draw(st.booleans()),
        "exclude_modules": draw(_sometimes(st.sampled_from(EXCLUDED))),
        "modules_to_save": draw(_sometimes(st.lists(st.sampled_from(SAVED), min_size=1, max_size=3, unique=True), 2)),
        "ensure_weight_tying": draw(st.booleans()),
        "init_lora_weights": draw(st.sampled_from([True, True, True, False, "gaussian", "orthogonal", "mica"])),
    }
    # PEFT itself refuses most of what puts two things on one matrix; little of that is drawn.
    touched = f"{targets} {config['modules_to_save']}"
    free = [name for name in ("embed_tokens", "lm_head") if name not in touched]
    if free and draw(st.integers(0, 2)) == 0:
        by_name = st.dictionaries(st.sampled_from(free), _tokens, min_size=1, max_size=2)
        config["trainable_token_indices"] = draw(st.one_of(_tokens, by_name) if len(free) == 2 else by_name)
    if not config["use_dora"] and "embed_tokens" not in touched:
        config["lora_bias"] = draw(st.booleans())
    for name, values in (("rank_pattern", [1, 3, 6, 9]), ("alpha_pattern", [1, 5, 40])):
        pattern = draw(_sometimes(st.dictionaries(st.sampled_from(PATTERNS), st.sampled_from(values), max_size=3), 1))
        if pattern:
            config[name] = pattern
    if isinstance(targets, list) and draw(st.integers(0, 3)) == 0:
        config["layers_to_transform"] = draw(st.sampled_from([0, [1], [0, 1], [1, 7]]))
        config["layers_pattern"] = draw(st.sampled_from([None, "layers", ["layers"]]))
    return Kind(config, **draw(_files()))


@st.composite
def ia3_kinds(draw: Callable[[Any], Any]) -> Kind:
    targets = draw(
        st.one_of(
            st.lists(st.sampled_from([*NAMES[:-2], "lm_head", "lm_head"]), min_size=1, max_size=6, unique=True),
            st.sampled_from(TARGETS),
        )
    )
    feedforward: Any = draw(st.sampled_from([None, r".*(down|q)_proj", r".*\.0\..*"]))
    if isinstance(targets, list):
        feedforward = draw(st.one_of(st.none(), st.lists(st.sampled_from(targets), unique=True)))
    saved = st.lists(st.sampled_from(SAVED), min_size=1, max_size=2, unique=True)
    config = {
        "target_modules": targets,
        "feedforward_modules": feedforward,
        "exclude_modules": draw(_sometimes(st.sampled_from(EXCLUDED))),
        "modules_to_save": draw(_sometimes(saved)),
        "fan_in_fan_out": draw(st.booleans()),
    }
    return Kind(config, ia3=True, **draw(_files()))


@st.composite
def _files(draw: Callable[[Any], Any]) -> dict[str, Any]:
    larger = draw(st.integers(0, 5)) == 0
    return {
        "dtype": draw(st.sampled_from(["float32", "float32", "float16", "bfloat16"])),
        "shards": draw(st.sampled_from([1, 1, 1, 2, 5])),
        "vocabulary": LARGER if larger else None,
        "tokenizer": larger,
    }


kinds = st.one_of(lora_kinds(), lora_kinds(), ia3_kinds())


@dataclass
class Tally:
    """What came of all that was drawn."""

    examples: int = 0
    adapters: int = 0
    peft_refused: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    differs: float = 0.0
    relative: float = 0.0
    """Of the adapter's largest logit, where that is above 1."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "examples": self.examples,
            "compared_adapters": self.adapters,
            "peft_itself_refuses": self.peft_refused,
            "refused_with_reason": dict(sorted(self.refused.items())),
            "largest_difference_of_a_logit": self.differs,
            "of_the_largest_logit": self.relative,
        }


class Combinations:
    """Runs examples on one world; every example makes its adapters anew."""

    def __init__(self, world: World, tally: Tally) -> None:
        self._world = world
        self._tally = tally
        self._numbers = itertools.count()

    def example(self, drawn: Sequence[Kind], seed: int) -> bool:
        """False where PEFT itself makes none of them. Raises AssertionError, with the kind, where we differ."""
        folder = self._world.folder / f"drawn-{next(self._numbers)}"
        found = [made for i, kind in enumerate(drawn) if (made := self._make(folder / str(i), kind, seed + i))]
        served = [made for made in found if self._served(made)]
        self._tally.examples += 1
        self._compare(served)
        shutil.rmtree(folder, ignore_errors=True)
        return bool(found)

    def _make(self, folder: Path, kind: Kind, seed: int) -> Made | None:
        folder.parent.mkdir(exist_ok=True)
        try:
            make(self._world.base, folder, kind, seed)
            ids = LARGER_IDS if kind.vocabulary else tuple(i % 320 for i in LARGER_IDS)
            logits = self._world.truth.logits(folder, ids, kind.vocabulary)
        except PeftRefused:
            self._tally.peft_refused += 1
            return None
        return Made(kind, folder, ids, logits)

    def _served(self, made: Made) -> bool:
        report = validate_directory(made.folder, self._world.bench.spec, base_dir=self._world.folder / "base")
        if report.ok:
            return True
        reasons = [check.message for check in report.failed]
        why = refusable(self._world, made)
        assert why is not None, f"refused, and nothing says why it may be: {reasons}\n{made.kind}"
        self._tally.refused[why] += 1
        return False

    def _compare(self, served: Sequence[Made]) -> None:
        world, loaded = self._world, [self._world.bench.load(made.folder) for made in served]
        alone = [world.script(made, one) for made, one in zip(served, loaded, strict=True)]
        for script in alone:
            world.bench.run(script)
        if served:
            together = [
                world.script(made, one, at=3 * i) for i, (made, one) in enumerate(zip(served, loaded, strict=True))
            ]
            base = world.script(None, None, at=1)
            world.bench.run(*together, base)
            assert world.differs(base, world.base_logits()) < WITHIN, "the base's own rows"
            for scripts, what in ((alone, "alone"), (together, "together")):
                for script, made in zip(scripts, served, strict=True):
                    differs = world.differs(script, made.logits)
                    largest = float(made.logits.abs().max())
                    assert differs < max(WITHIN, LARGE * largest), f"{what}: {differs} from PEFT\n{made.kind}"
                    self._tally.differs = max(self._tally.differs, differs)
                    self._tally.relative = max(self._tally.relative, differs / max(1.0, largest))
        world.bench.unload(*loaded)
        for one in loaded:
            world.bench.host.discard(one.ref.key)
        self._tally.adapters += len(served)


def refusable(world: World, made: Made) -> str | None:
    """Why an adapter that PEFT makes and runs may be refused; None: it may not."""
    torch.manual_seed(made.logits.shape[1])  # another draw of what the files do not hold
    again = world.truth.logits(made.folder, made.ids, made.kind.vocabulary)
    if not torch.equal(again, made.logits):
        return "its files do not hold all rows of its larger vocabulary"
    config = made.kind.config
    patterned = "lm_head" in str(config.get("rank_pattern")) or "embed_tokens" in str(config.get("rank_pattern"))
    if world.kind.tied and config.get("ensure_weight_tying") and patterned:
        return "tied factors of a rank that the config gives to one of them only"
    if (
        world.kind.tied
        and config.get("ensure_weight_tying")
        and config.get("init_lora_weights") in ("orthogonal", "mica")
    ):
        return "an initialiser that puts new factors in place of those that were tied"
    return None


def run_examples(world: World, examples: int, tally: Tally, seed: int | None = None) -> None:
    """Raises AssertionError at the first that is wrong; its message names the one kind, so that nothing is shrunk."""
    combinations = Combinations(world, tally)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(drawn=st.lists(kinds, min_size=3, max_size=3), number=st.integers(0, 1000))
    def each(drawn: Sequence[Kind], number: int) -> None:
        assume(combinations.example(drawn, number))

    (each if seed is None else draw_from(seed)(each))()


__all__ = ["Combinations", "Tally", "ia3_kinds", "kinds", "lora_kinds", "refusable", "run_examples"]
