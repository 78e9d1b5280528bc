"""What stands in for a graph on a CPU freezes every value and address, and leaves nothing that looks like an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lorry.engine.gpu.graphs import StandInGraphs
from lorry.engine.gpu.trace import poison
from lorry.errors import InternalError
from lorry_kernels.ops import silu_mul as silu_module
from lorry_kernels.ops.launches import Launch, heard
from lorry_kernels.ops.rms_norm import rms_norm
from lorry_kernels.ops.silu_mul import silu_mul

CHANGED = "a graph runs as it was captured"
BODIES: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "views": lambda x: (x.view(2, 3).t()[1:].contiguous() * 2, torch.split(x, 2)[1] + 1),
    "in place": lambda x: (torch.zeros(6).add_(x).clamp_(max=2.5),),
    "out": lambda x: (torch.index_select(x, 0, torch.arange(3), out=torch.empty(3)),),
    "several": lambda x: tuple(x.view(2, 3).max(1)),
    "cut": lambda x: (x.reshape(3, 2).to(torch.float64), x.to(torch.float32) + 0, torch.cat([x, x])),
    "kernels": lambda x: (rms_norm(silu_mul(x.view(1, 6)), torch.ones(3), 1e-5),),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_every_run_is_what_the_body_would_answer(name: str, inference: bool) -> None:
    static = torch.zeros(6)
    body = BODIES[name]
    with torch.inference_mode(inference):
        graph = StandInGraphs().capture(lambda: body(static), (static,))
    for run in range(3):
        static.copy_(torch.tensor([5.0, 1.0, -2.0, 3.0, 0.5, 9.0]) * (run + 1))
        found = graph.run()
        want = body(static)
        assert len(found) == len(want)
        assert all(torch.equal(one, other) for one, other in zip(found, want, strict=True))


@pytest.mark.parametrize(
    ("before", "after", "was", "now"), [(2, 3, "2", "3"), (2, 2.0, "2", "2.0"), (1.5, float("nan"), "1.5", "'nan'")]
)
def test_a_value_that_changed_since_the_capture_is_named(before: float, after: float, was: str, now: str) -> None:
    factor: list[float] = [before]
    static = torch.ones(2)
    graph = StandInGraphs().capture(lambda: (static * factor[0],))
    assert graph.run()[0].tolist() == [before] * 2
    factor[0] = after
    with pytest.raises(
        InternalError, match=rf"{CHANGED}: call 0, aten\.mul\.Tensor: other was {was}, now it is {now};"
    ):
        graph.run()
    factor[0] = before
    assert graph.run()[0].tolist() == [before] * 2


def test_a_nan_that_stays_one_has_not_changed() -> None:
    static = torch.ones(2)
    graph = StandInGraphs().capture(lambda: (torch.where(static > 0, float("nan"), 0.0) + static,))
    assert bool(graph.run()[0].isnan().all())


def test_a_kernels_argument_that_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    eps, x, weight = [1e-5], torch.ones(2, 8), torch.ones(8)
    graph = StandInGraphs().capture(lambda: (rms_norm(x, weight, eps[0]),))
    assert graph.run()[0].shape == (2, 8)
    eps[0] = 1e-6
    with pytest.raises(InternalError, match=rf"{CHANGED}: .*kernel _rms_norm_kernel: .* was 1e-05, now it is 1e-06"):
        graph.run()
    gate_up = torch.ones(2, 8)
    graph = StandInGraphs().capture(lambda: (silu_mul(gate_up),))
    graph.run()
    monkeypatch.setattr(silu_module, "cdiv", lambda a, b: -(-a // b) + 1)
    with pytest.raises(InternalError, match=r"kernel _silu_mul_kernel: grid was \(2, 1\), now it is \(2, 2\)"):
        graph.run()


@pytest.mark.parametrize("kernel", [False, True], ids=["op", "kernel"])
def test_a_buffer_that_was_replaced_is_named(kernel: bool) -> None:
    """Though the new one holds the same."""
    static, weight = [torch.ones(2, 8)], torch.ones(8)
    graph = StandInGraphs().capture(lambda: (rms_norm(static[0], weight, 1e-5) if kernel else static[0] + weight,))
    old = static[0]
    static[0] = old.clone()
    with pytest.raises(
        InternalError, match=rf"{CHANGED}: .* was torch.float32 \[2, 8\] .* at 0x.*, now it is .* at 0x"
    ):
        graph.run()
    static[0] = old
    graph.run()


def test_another_view_of_a_buffer_is_another() -> None:
    static, first = torch.arange(4.0), [0]
    graph = StandInGraphs().capture(lambda: (static[first[0] :][:2] + 1,))
    first[0] = 1
    with pytest.raises(InternalError, match=r"aten\.slice\.Tensor: start was 0, now it is 1"):
        graph.run()


def test_a_body_that_asks_for_more_or_less_or_other_is_refused() -> None:
    static, more = torch.ones(2), [1]

    def body() -> tuple[Tensor, ...]:
        x = static
        for _ in range(more[0]):
            x = x + 1
        return (x.neg(),)

    graph = StandInGraphs().capture(body)
    more[0] = 2
    with pytest.raises(InternalError, match=r"call 1 was aten\.neg\.default, now it is aten\.add\.Tensor"):
        graph.run()
    answers: list[Callable[[Tensor], tuple[Tensor, ...]]]
    answers = [lambda x: (x + 1, x - 1), lambda x: (x + 1,), lambda x: (x + 1, x - 1, x * 2)]
    kind = [0]
    graph = StandInGraphs().capture(lambda: answers[kind[0]](static))
    kind[0] = 1
    with pytest.raises(InternalError, match=r"call 1 was aten\.sub\.Tensor, now the body ends before it"):
        graph.run()
    kind[0] = 2
    with pytest.raises(InternalError, match=r"ended after 2 calls, now it goes on with aten\.mul\.Tensor"):
        graph.run()


def test_a_body_that_returns_another_buffer_is_refused() -> None:
    buffers, at = [torch.ones(2), torch.ones(2)], [0]
    graph = StandInGraphs().capture(lambda: (buffers[at[0]],))
    at[0] = 1
    with pytest.raises(InternalError, match=r"the body returned .*, now it returns"):
        graph.run()


def test_nothing_moves_between_runs() -> None:
    """What the body makes lies where it lay, as in a graph's pool."""
    static, seen = torch.ones(4), []

    def body() -> tuple[Tensor, ...]:
        halves = torch.split(static * 2, 2)
        seen.append([(static * 2).data_ptr(), *(half.data_ptr() for half in halves)])
        return (halves[0] + halves[1],)

    graph = StandInGraphs().capture(body)
    del seen[:-1]  # of a warm-up
    kept = [torch.ones(4) for _ in range(64)]  # would be given the addresses that are free
    graph.run()
    graph.run()
    assert len(kept) == 64
    assert seen[0] == seen[1] == seen[2]


def test_a_run_without_new_inputs_is_seen() -> None:
    static, ids, table = torch.ones(2), torch.zeros(2, dtype=torch.int64), torch.arange(6.0)
    graph = StandInGraphs().capture(lambda: (static * 2,), (static,))
    assert bool(graph.run()[0].isnan().all())
    static.fill_(3.0)
    assert graph.run()[0].tolist() == [6.0, 6.0]
    graph = StandInGraphs().capture(lambda: (table.index_select(0, ids),), (ids,))
    with pytest.raises(IndexError, match="out of range"):
        graph.run()
    ids.copy_(torch.tensor([4, 1]))
    assert graph.run()[0].tolist() == [4.0, 1.0]


def test_an_answer_before_the_first_run_is_none() -> None:
    """A capture computes nothing on a card. What a body only passes on is not its own to spoil."""
    static, into, passed = torch.ones(2), torch.zeros(2), torch.ones(2)
    held: list[Tensor] = []

    def body() -> tuple[Tensor, ...]:
        held[:] = [static + 1, into.copy_(static), passed]
        return tuple(held)

    StandInGraphs().capture(body)
    assert bool(held[0].isnan().all())
    assert bool(into.isnan().all())
    assert passed.tolist() == [1.0, 1.0]


def test_an_allocation_holds_what_others_left_there() -> None:
    static = torch.ones(2)

    def body() -> tuple[Tensor, ...]:
        made = torch.empty(3)
        made[:2].copy_(static)
        return (made,)

    graph = StandInGraphs().capture(body)
    for _ in range(2):
        (found,) = graph.run()
        assert found[:2].tolist() == [1.0, 1.0]
        assert bool(found[2].isnan())
        found.fill_(0.0)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool],
)
def test_poison_is_no_value(dtype: torch.dtype) -> None:
    made = torch.zeros(3, dtype=dtype)
    poison(made)
    if dtype.is_floating_point:
        assert bool(made.isnan().all())
    elif dtype.is_signed:
        assert made.tolist() == [made[0].item()] * 3
        assert all(int(made.to(narrow)[0]) < -50 for narrow in (torch.int64, torch.int32, torch.int8))
    else:
        assert bool(made.all())


def test_launches_of_others_are_not_heard() -> None:
    """Nor does a body that failed leave anybody listening."""
    told: list[Launch] = []
    x, weight = torch.ones(2, 8), torch.ones(8)

    def launch() -> Any:
        return rms_norm(x, weight, 1e-5)

    def refuse(one: Launch) -> None:
        told.append(one)
        raise InternalError(one.kernel)

    with heard(refuse), pytest.raises(InternalError, match="_rms_norm_kernel"):
        launch()
    assert [one.kernel for one in told] == ["_rms_norm_kernel"]
    assert torch.equal(launch(), torch.full((2, 8), 1 / (1 + 1e-5) ** 0.5))
    with heard(told.append):
        other = threading.Thread(target=launch)
        other.start()
        other.join()
    assert len(told) == 1
