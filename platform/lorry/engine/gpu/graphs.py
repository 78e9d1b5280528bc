"""A captured step that runs again by one call: CUDA graphs, and what stands in for them where there is no GPU.

A graph has the addresses that it was captured with. So a body reads static buffers alone, which are filled before each
run, and what it returns is overwritten by the next run of the same graph. It may not read from the device to decide
anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lorry.errors import InternalError

WARM_UPS = 2
"""Runs before a capture: libraries allocate their workspaces and kernels are compiled in the first."""

Body = Callable[[], tuple[Tensor, ...]]


class Graph(Protocol):
    """``run`` enqueues the body once more; the tensors that it answers are the same each time."""

    def run(self) -> tuple[Tensor, ...]: ...


class Graphs(Protocol):
    def capture(self, body: Body) -> Graph:
        """Runs the body a few times, then keeps it."""


class CudaGraphs:
    """All graphs of an engine share one pool of memory: they never run at the same time. One stream warms up and
    captures all of them, since libraries keep a workspace for each stream that they ever saw."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch types its members only

    def capture(self, body: Body) -> Graph:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                body()
        graph = torch.cuda.CUDAGraph()
        # Of this thread alone: others may take pinned memory for adapters meanwhile, which a global capture forbids.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = body()
        current.wait_stream(self._stream)
        return _CudaGraph(graph, outputs)


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: tuple[Tensor, ...]) -> None:
        self._graph, self._outputs = graph, outputs

    def run(self) -> tuple[Tensor, ...]:
        self._graph.replay()
        return self._outputs


class StandInGraphs:
    """For the CPU: the body runs again, under a graph's rules. What it returned at capture is what it returns ever
    after, with the new run's values; and reading a value on the host raises."""

    def capture(self, body: Body) -> Graph:
        body()
        with NoHostReads():  # type: ignore[no-untyped-call]  # torch does not type the base class
            outputs = body()
        return _StandIn(body, outputs)


class _StandIn:
    def __init__(self, body: Body, outputs: tuple[Tensor, ...]) -> None:
        self._body, self._outputs = body, outputs

    def run(self) -> tuple[Tensor, ...]:
        with NoHostReads():  # type: ignore[no-untyped-call]  # torch does not type the base class
            made = self._body()
        for kept, new in zip(self._outputs, made, strict=True):
            kept.copy_(new)
        return self._outputs


class NoHostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # the same
    """Raises InternalError where a body asks a tensor for a value, or for a shape that depends on values; or makes a
    tensor of a host's values, which a graph would copy from memory that is another's by then."""

    _READS = frozenset(
        ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "masked_select", "unique_dim", "_unique2")
    )
    _FROM_HOST = frozenset(("lift_fresh", "_pin_memory"))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.rpartition("::")[2]
        masked = name in ("index", "index_put_") and any(
            isinstance(one, Tensor) and one.dtype == torch.bool for one in args[1] or ()
        )
        if name in self._FROM_HOST:
            raise InternalError(f"aten::{name} makes a tensor of the host's values, which a captured graph cannot do")
        if name in self._READS or masked:
            raise InternalError(f"aten::{name} reads a value on the host, which a captured graph cannot do")
        return func(*args, **(kwargs or {}))


__all__ = ["CudaGraphs", "Graph", "Graphs", "NoHostReads", "StandInGraphs"]
