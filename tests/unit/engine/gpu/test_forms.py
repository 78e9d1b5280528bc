"""Decode rows of adapters with input gains, embeddings and heads of their own, in captured graphs with plain ones and
the base: each row is what it is alone, bit for bit, and what the CPU's engine computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.engine.gpu.forms import Form
from lorry.engine.gpu.runner import PagedRunner
from lorry_kernels.ops.launches import Launch, heard
from tests.support.kinds import LARGER, LAYER_KINDS, VOCABULARY_KINDS
from tests.support.mixing import Bench, Loaded, Script
from tests.support.paged import OneLayer, PagedBench
from tests.support.tiny_base import write_tiny_model
from tests.support.zoo import Kind, load_base, make

IDS = (300, 1, 72)
"""The first two are trained ones of the kind "tokens"."""
FEW, ROWS = 2, 9
WITHIN = 1e-4
GAINS, SLICES, EMBEDS, TOKENS, WHOLE = "ia3", "slices", "embeds", "tokens", "whole"
HEAD, BIASED_HEAD, PLAIN = "head", "biased head", "plain"
KINDS: Mapping[str, Kind] = {
    GAINS: LAYER_KINDS["ia3"],
    SLICES: LAYER_KINDS["ia3, inputs of attention"],
    EMBEDS: VOCABULARY_KINDS["dora embedding"],
    TOKENS: VOCABULARY_KINDS["tokens"],
    WHOLE: VOCABULARY_KINDS["embedding"],
    HEAD: VOCABULARY_KINDS["dora head"],
    BIASED_HEAD: VOCABULARY_KINDS["lora_bias head"],
    PLAIN: LAYER_KINDS["r3"],
}
FORMS = {
    GAINS: Form.OWN,
    SLICES: Form.SLICED,
    EMBEDS: Form.OWN,
    TOKENS: Form.OWN,
    WHOLE: Form.OWN,
    HEAD: Form.OWN,
    BIASED_HEAD: Form.OWN,
    PLAIN: Form.LORA,
    None: Form.BASE,
}
BIASED = "qwen2"
"""A base whose qkv has a bias, and whose embedding is not its head."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("forms")
    write_tiny_model(root / "base", BIASED, tie_word_embeddings=False, num_hidden_layers=1)
    for name, kind in KINDS.items():
        make(load_base(root / "base"), root / name, kind)
    return root


@pytest.fixture
def bench(root: Path) -> Iterator[PagedBench]:
    """Every decode step runs in one graph's number of rows, and in a graph: a product's bits may depend on how many."""
    made = OneLayer(root / "base")
    runner = runner_of(made)
    runner._buckets = (FEW,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_eager", None)
        yield made


def runner_of(bench: PagedBench) -> PagedRunner:
    assert isinstance(bench.runner, PagedRunner)
    return bench.runner


def scripts_of(loaded: Mapping[str, Loaded]) -> list[Script]:
    """One of each and the base; the prompt is one token too, so that all of a sequence is decode steps."""
    return [Script(one, IDS, (1,), scores=False) for one in (*loaded.values(), None)]


def alone(bench: Bench, loaded: Loaded | None) -> list[torch.Tensor]:
    script = Script(loaded, IDS, (1,), scores=False)
    bench.run(script)
    assert script.fault is None
    return script.logits


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) == len(IDS) and all(map(torch.equal, one, other))


def test_one_graph_of_all_kinds_and_their_slots_again(
    root: Path, bench: PagedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No head of these is multiplied outside."""
    monkeypatch.setattr(runner_of(bench), "_logits_of", None)
    captured = runner_of(bench)._captured
    runner_of(bench)._buckets = (ROWS,)
    loaded = {name: bench.load(root / name) for name in KINDS}
    together = scripts_of(loaded)
    bench.run(*together)
    assert [(key[0], Form(key[1])) for key in captured] == [(ROWS, Form.SLICED)]
    cpu = Bench(root / "base")
    names = [*KINDS, None]
    found: dict[str | None, list[torch.Tensor]] = {}
    for name, script in zip(names, together, strict=True):
        assert script.fault is None, name
        wanted = alone(cpu, None if name is None else cpu.load(root / name))
        for position, (one, other) in enumerate(zip(script.logits, wanted, strict=True)):
            assert float((one - other).abs().max()) < WITHIN, (name, position)
        found[name] = script.logits
        if name is not None:
            moved = max(float((one - other).abs().max()) for one, other in zip(wanted, alone(cpu, None), strict=True))
            assert moved > 10 * WITHIN, f"{name} shows nothing"
        if name in (None, PLAIN, GAINS, HEAD):
            assert same(alone(bench, loaded.get(name or "")), script.logits), f"{name} alone"
    assert {Form(form) for _, form in captured} == set(Form), "each alone in its own form"

    # Plain adapters in the slots of the others, in a graph that would read what was there; and these in other slots.
    keeper, changed = loaded[SLICES], [GAINS, EMBEDS, TOKENS, WHOLE, HEAD, BIASED_HEAD]
    before = [loaded[name].slot for name in changed]
    bench.unload(*(loaded[name] for name in reversed(changed)))
    plain = [bench.load(root / PLAIN) for _ in changed]
    assert [one.slot for one in plain] == before
    others = [Script(one, IDS, (1,), scores=False) for one in (*plain, keeper)]
    bench.run(*others)
    for name, script in zip(changed, others, strict=False):  # the last is the keeper
        assert same(script.logits, found[PLAIN]), f"in the slot of {name}"
    assert same(others[-1].logits, found[SLICES])
    bench.unload(*plain)
    again = [bench.load(root / name) for name in changed]
    assert [one.slot for one in again] != before
    turned = [Script(one, IDS, (1,), scores=False) for one in (keeper, *again)]
    bench.run(*turned)
    assert all(same(script.logits, found[name]) for name, script in zip((SLICES, *changed), turned, strict=True))
    assert len(captured) == len(Form)


def test_another_generation_reads_nobodys_gains_embedding_and_head(root: Path, bench: PagedBench) -> None:
    """The row is a fault, and the others are what they were."""
    loaded = {name: bench.load(root / name) for name in (GAINS, EMBEDS, HEAD)}
    right = {name: alone(bench, one) for name, one in loaded.items()}
    generation = runner_of(bench)._device.adapters.tables.generation
    for changed, other in ((GAINS, EMBEDS), (EMBEDS, HEAD), (HEAD, GAINS)):
        held = int(generation[loaded[changed].slot])
        generation[loaded[changed].slot] = held + 1
        pair = [Script(loaded[name], IDS, (1,), scores=False) for name in (changed, other)]
        bench.run(*pair)
        assert pair[0].fault is not None
        assert same(pair[1].logits, right[other])
        generation[loaded[changed].slot] = held


@pytest.mark.parametrize("name", [PLAIN, GAINS, TOKENS, WHOLE, HEAD, BIASED_HEAD])
def test_the_row_of_another_fill_runs_as_the_bases(root: Path, bench: PagedBench, name: str) -> None:
    """Nothing that lies in the slot reaches it; its answer is withheld besides."""
    loaded, runner = bench.load(root / name), runner_of(bench)

    def first(script: Script) -> torch.Tensor:
        bench.run(script)
        assert runner._logits is not None
        return runner._logits[0].clone()

    base = first(Script(None, IDS[:1], (1,), scores=False))
    own = first(Script(loaded, IDS[:1], (1,), scores=False))
    assert not torch.equal(own, base), "or there would be nothing to see"
    runner._device.adapters.tables.generation[loaded.slot] += 1
    script = Script(loaded, IDS[:1], (1,), scores=False)
    assert torch.equal(first(script), base)
    assert script.fault is not None


def test_an_own_head_of_another_vocabulary_is_outside_the_graph(root: Path, bench: PagedBench) -> None:
    kind = VOCABULARY_KINDS["larger vocabulary, trained"]
    make(load_base(root / "base"), root / "larger", kind)
    runner_of(bench)._buckets = (FEW + 1,)
    loaded = {"larger": bench.load(root / "larger"), PLAIN: bench.load(root / PLAIN)}
    together = scripts_of(loaded)
    bench.run(*together)
    assert [Form(form) for _, form in runner_of(bench)._captured] == [Form.OWN]
    assert [len(script.logits[0]) for script in together] == [LARGER, bench.spec.vocabulary, bench.spec.vocabulary]
    cpu = Bench(root / "base")
    for name, script in zip((*loaded, None), together, strict=True):
        assert script.fault is None
        wanted = alone(cpu, None if name is None else cpu.load(root / name))
        assert all(
            float((one - other).abs().max()) < WITHIN for one, other in zip(script.logits, wanted, strict=True)
        ), name


def test_heads_of_an_eager_step_and_of_a_scored_prompt(root: Path) -> None:
    """With LoRA on them and whole ones, beside the base's, in one step."""
    make(load_base(root / "base"), root / "whole head", VOCABULARY_KINDS["head"])
    names = (HEAD, None, "whole head", BIASED_HEAD)
    found = []
    for bench in (OneLayer(root / "base"), Bench(root / "base")):
        loaded = [None if name is None else bench.load(root / name) for name in names]
        scripts = [Script(one, (*IDS, 7), (3,)) for one in loaded]
        bench.run(*scripts)
        found.append((scripts, bench.spec.vocabulary))
    for name, script, wanted in zip(names, found[0][0], found[1][0], strict=True):
        assert script.fault is None
        pairs = zip(script.logits, wanted.logits, strict=True)
        assert all(float((one - other).abs().max()) < WITHIN for one, other in pairs), name
        one, other = (which.log_softmax(found[0][1]) for which in (script, wanted))
        assert len(one) == 2, "the rows of a prompt that say what follows"
        assert float((one - other).abs().max()) < WITHIN, name


OWN = ("_embed", "_embedding_planes", "_replace_rows")


def launched(run: Any) -> Counter[str]:
    found: Counter[str] = Counter()

    def listen(launch: Launch) -> Any:
        found[launch.kernel] += 1
        return launch.run()

    with heard(listen):
        run()
    return found


@pytest.mark.parametrize("name", [None, PLAIN, GAINS, TOKENS, HEAD, SLICES])
def test_a_captured_step_launches_what_its_form_may_need(root: Path, bench: PagedBench, name: str | None) -> None:
    loaded = None if name is None else bench.load(root / name)
    form, layers = FORMS[name], bench.spec.layers
    found = launched(lambda: bench.run(Script(loaded, IDS[:1], (1,), scores=False)))
    assert found["_paged_decode"] == layers, "the run before a capture: the stand-in hears those after it"
    want = {
        "_shrink": (4 * layers if form >= Form.LORA else 0) + (1 if form >= Form.OWN else 0),
        "_input_gain": (2 * layers if form >= Form.OWN else 0) + (5 * layers if form == Form.SLICED else 0),
        "_take_gained": 5 * layers if form == Form.SLICED else 0,
        **dict.fromkeys(OWN, 1 if form >= Form.OWN else 0),
    }
    assert {kernel: found[kernel] for kernel in want} == want


def test_an_eager_step_launches_what_its_adapters_need(root: Path) -> None:
    bench = OneLayer(root / "base")

    def step(*names: str | None) -> Counter[str]:
        loaded = [None if name is None else bench.load(root / name) for name in names]
        scripts = [Script(one, IDS[:3], (3,), scores=False) for one in loaded]
        found = launched(lambda: bench.run(*scripts))
        bench.unload(*(one for one in loaded if one is not None))
        return found

    layers = bench.spec.layers
    own = (*OWN, "_input_gain", "_take_gained")
    for names in ((None,), (PLAIN, None)):
        found = step(*names)
        assert [kernel for kernel in own if found[kernel]] == []
        assert bool(found["_shrink"]) == (PLAIN in names)
    gains = step(GAINS, PLAIN, None)
    assert {kernel: gains[kernel] for kernel in own if gains[kernel]} == {"_input_gain": layers}, "at down alone"
    tokens = step(TOKENS, None)
    assert {kernel for kernel in own if tokens[kernel]} == set(OWN)
    slices = step(SLICES)
    assert (slices["_input_gain"], slices["_take_gained"]) == (3 * layers, 2 * layers), "q, o and up"
