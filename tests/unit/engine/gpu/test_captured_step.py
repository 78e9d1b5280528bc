"""A runner's captured decode steps keep a graph's rules: their buffers are theirs for ever, and are filled anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lorry.engine.gpu.forms import Form
from lorry.engine.gpu.inputs import decode_workspace
from lorry.engine.gpu.runner import PagedRunner
from lorry.errors import InternalError
from tests.unit.engine.gpu.test_memory_once import made, padding


@pytest.fixture
def runner(tmp_path: Path) -> PagedRunner:
    return made(tmp_path)


@torch.inference_mode()
def test_a_step_without_new_inputs_is_seen(runner: PagedRunner) -> None:
    """Before it reads anything by its numbers, and as an error: they lead nowhere."""
    for form in Form:
        captured = runner._capture(1, form)
        assert captured is not None
        with pytest.raises(IndexError, match="out of range"):
            captured.graph.run()
        captured.inputs.packed.copy_(padding(runner, 1))
        logits, *fault = captured.graph.run()
        assert bool(logits.isfinite().all())
        assert [one.tolist() for one in fault] == [[0]] * (form >= Form.LORA)


@torch.inference_mode()
def test_a_table_that_is_replaced_after_a_capture_is_named(runner: PagedRunner) -> None:
    captured = runner._capture(1, Form.BASE)
    assert captured is not None
    captured.inputs.packed.copy_(padding(runner, 1))
    captured.graph.run()
    tables = runner._device.tables
    tables.table = tables.table.clone()
    with pytest.raises(InternalError, match=r"aten\.index_select\.out: self was torch.int32 .* at 0x"):
        captured.graph.run()


@torch.inference_mode()
def test_a_workspace_that_is_replaced_after_a_capture_is_named(runner: PagedRunner) -> None:
    captured = runner._capture(1, Form.LORA)
    assert captured is not None
    captured.inputs.packed.copy_(padding(runner, 1))
    captured.graph.run()
    captured.inputs._workspace = decode_workspace(runner._device.shape, 2)
    with pytest.raises(InternalError, match=r"kernel _paged_decode: argument \d+ was torch.float32 .* at 0x"):
        captured.graph.run()
