"""What a device has room for once, it holds once: weights of fused sites, workspaces of splits, answers of graphs."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import torch

from lorry.config import MemoryConfig, SchedulerConfig
from lorry.engine.gpu.build import build_paged, page_layout
from lorry.engine.gpu.inputs import padding as padding_row
from lorry.engine.gpu.runner import PagedRunner
from lorry.layers.sites import SITE_SLICES, module_name
from lorry.layers.spec import EMBEDDING, HEAD
from lorry.models.fused import fused, joined
from lorry.models.weights import load_tensors, read_spec
from lorry_kernels.ops.attention_shape import SPLIT_TOKENS
from tests.support.tiny_base import write_tiny_base

CPU = torch.device("cpu")
MEMORY = MemoryConfig(budget_bytes=1 << 20, page_tokens=16, max_slots=2, max_rank=16)


def made(root: Path, context: int = 64) -> PagedRunner:
    write_tiny_base(root)
    spec = read_spec(root)
    limits = SchedulerConfig(max_sequences=2, token_budget=16, prefill_chunk_tokens=16, context_tokens=context)
    layout = page_layout(spec, MEMORY, torch.float32, CPU)
    tensors = fused(spec, load_tensors(root, spec, torch.float32), CPU)
    none = (lambda digest: None, lambda digest: None)
    return build_paged(spec, tensors, MEMORY, layout, limits, CPU, *none).runner


def padding(runner: PagedRunner, rows: int) -> torch.Tensor:
    return torch.tensor([padding_row(runner._device.tables.nobody)] * rows).t()


def test_a_site_is_one_matrix_and_no_copy(tmp_path: Path) -> None:
    write_tiny_base(tmp_path)
    spec = read_spec(tmp_path)
    plain = load_tensors(tmp_path, spec, torch.float32)
    found = fused(spec, plain, CPU)
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)
    assert (found[HEAD] is found[EMBEDDING]) == (plain[HEAD] is plain[EMBEDDING])
    for layer in range(spec.layers):
        for slices in SITE_SLICES.values():
            names = [f"{module_name(layer, name)}.weight" for name in slices]
            whole = joined([found[name] for name in names])
            assert whole.data_ptr() == found[names[0]].data_ptr()
            assert torch.equal(whole, torch.cat([plain[name] for name in names]))


def test_matrices_that_do_not_follow_each_other_are_copied() -> None:
    whole = torch.arange(40.0).view(10, 4)
    apart = [whole[:3], whole[4:6]]
    for parts in ([whole[3:6], whole[:3]], apart, [whole[:2], whole[2:4].clone()], [whole.t()[:2], whole.t()[2:]]):
        assert torch.equal(joined(parts), torch.cat(parts))
        assert joined(parts).data_ptr() != parts[0].data_ptr()


def test_all_graphs_share_what_they_answer_in_and_their_workspace(tmp_path: Path) -> None:
    runner = made(tmp_path, context=2 * SPLIT_TOKENS)
    runner.capture()
    held = list(runner._captured.values())
    assert len(held) == 2 * len(runner._buckets) == 4
    assert len({one.inputs._workspace.partial.data_ptr() for one in held}) == 1
    assert held[0].inputs._workspace.partial.shape[0] == 2 * 2, "two splits for each of two rows"
    with torch.inference_mode():
        answers = []
        for one in held:
            one.inputs.packed.copy_(padding(runner, one.inputs.packed.shape[1]))
            answers.append(one.graph.run()[0])
    assert len({answer.data_ptr() for answer in answers}) == 1
    assert {answer.dtype for answer in answers} == {torch.float32}


def test_a_runner_is_gone_when_nobody_has_it(tmp_path: Path) -> None:
    """A profiling pass builds one, and what it held must be free before the real one is built."""
    runner = made(tmp_path)
    arena, gone = weakref.ref(runner._device.adapters._arena), weakref.ref(runner)
    gc.disable()
    try:
        del runner
        assert gone() is None
        assert arena() is None
    finally:
        gc.enable()
