"""A device whose slot holds another fill than was planned answers nothing with it, neither eagerly nor in a graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorry.errors import SlotIntegrity
from tests.support.adapters import save_adapter
from tests.support.mixing import Loaded, Script
from tests.support.paged import OneLayer, PagedBench
from tests.support.tiny_base import write_tiny_base

IDS = (1, 72, 300, 5, 33, 200, 7)
Built = tuple[PagedBench, Path]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    root = tmp_path_factory.mktemp("foreign")
    base = write_tiny_base(root / "base", num_hidden_layers=1)
    for number in range(2):
        save_adapter(base, root / f"adapter-{number}", seed=number)
    return OneLayer(root / "base"), root


def run(bench: PagedBench, loaded: Loaded | None, prefill: int = 4) -> Script:
    script = Script(loaded, IDS, (prefill,), scores=False)
    bench.run(script)
    return script


def test_the_same_graph_runs_whatever_was_loaded_since(built: Built) -> None:
    """Decode rows of the first adapter, of the second in the same slot, of the first again in another place."""
    bench, root = built
    alone = []
    for number in (0, 1, 0):
        loaded = bench.load(root / f"adapter-{number}")
        slot = loaded.slot
        alone.append((slot, run(bench, loaded).logits))
        bench.unload(loaded)
    assert alone[0][0] == alone[1][0] == alone[2][0], "slots are used again"
    first, second, again = (logits for _, logits in alone)
    assert len(first) == len(IDS) - 3
    assert all((one == other).all() for one, other in zip(first, again, strict=True)), "bit for bit"
    assert all(float((one - other).abs().max()) > 0.05 for one, other in zip(first, second, strict=True))
    assert len(bench.runner._captured) == 1, "one row with adapters"  # type: ignore[attr-defined]  # the paged runner's


@pytest.mark.parametrize("prefill", [4, 1], ids=["eager", "in a graph"])
def test_another_generation_on_the_device_is_a_fault(built: Built, prefill: int) -> None:
    """The host's table says that all is well: the kernels compare for themselves."""
    bench, root = built
    loaded = bench.load(root / "adapter-0")
    assert run(bench, loaded).fault is None
    generation = bench.runner._adapters.tables.generation  # type: ignore[attr-defined]  # the paged runner's
    held = int(generation[loaded.slot])
    generation[loaded.slot] = held + 1
    script = run(bench, loaded, prefill)
    assert script.fault == SlotIntegrity.reason
    assert run(bench, None).fault is None, "the base's rows do not notice"
    generation[loaded.slot] = held
    assert run(bench, loaded, prefill).fault is None
    bench.unload(loaded)
