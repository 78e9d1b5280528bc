"""What stands in for a CUDA graph on a CPU keeps a graph's rules; buckets hold every number of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lorry.engine.gpu.buckets import bucket_of, decode_buckets
from lorry.engine.gpu.graphs import StandInGraphs
from lorry.errors import InternalError


def test_a_run_reads_what_the_static_buffers_hold_now() -> None:
    static = torch.tensor([1.0, 2.0])
    graph = StandInGraphs().capture(lambda: (static * 2,))
    static.copy_(torch.tensor([5.0, 7.0]))
    assert graph.run()[0].tolist() == [10.0, 14.0]


def test_what_a_run_answered_is_overwritten_by_the_next() -> None:
    """As in a graph: whoever keeps an answer copies it."""
    static = torch.ones(2)
    graph = StandInGraphs().capture(lambda: (static + 1,))
    first = graph.run()[0]
    static.fill_(9.0)
    second = graph.run()[0]
    assert first is second
    assert first.tolist() == [10.0, 10.0]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).all()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        torch.unique,
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.cpu(),
        lambda x: torch.equal(x, x),
    ],
    ids=["item", "bool", "nonzero", "mask", "unique", "list", "numpy", "cpu", "equal"],
)
@pytest.mark.parametrize("later", [False, True], ids=["at capture", "at a run"])
def test_a_body_that_reads_on_the_host_is_refused(read: object, later: bool) -> None:
    static, reads = torch.ones(3), [not later]

    def body() -> tuple[torch.Tensor, ...]:
        if reads[0]:
            assert callable(read)
            read(static)
        return (static * 2,)

    if not later:
        with pytest.raises(InternalError, match="reads a value on the host"):
            StandInGraphs().capture(body)
        return
    graph = StandInGraphs().capture(body)
    reads[0] = True
    with pytest.raises(InternalError, match=r"reads a value on the host|runs as it was captured"):
        graph.run()


@pytest.mark.parametrize("make", [lambda: torch.tensor([1.0, 2.0]), lambda: torch.tensor(3)], ids=["list", "number"])
def test_a_body_that_takes_the_hosts_values_is_refused(make: Callable[[], torch.Tensor]) -> None:
    """The graph would read the host's memory at each run, long after it was given to others."""
    static = torch.ones(2)
    with pytest.raises(InternalError, match="makes a tensor of the host's values"):
        StandInGraphs().capture(lambda: (static * make(),))


@given(st.integers(1, 700), st.data())
def test_every_number_of_rows_has_a_bucket(most: int, data: st.DataObject) -> None:
    buckets = decode_buckets(most)
    assert list(buckets) == sorted(set(buckets))
    assert buckets[-1] == most
    rows = data.draw(st.integers(1, most))
    found = bucket_of(buckets, rows)
    assert found is not None
    assert rows <= found
    assert found <= max(2 * rows, 8)
    if rows >= 64:
        assert found <= rows * 1.25
    assert bucket_of(buckets, most + 1) is None
    assert len(buckets) < 45, "each takes a capture at start"
