"""A captured step that runs again by one call: CUDA graphs, and what stands in for them where there is no GPU.

A graph has the addresses that it was captured with. So a body reads static buffers alone, which are filled before each
run, and what it returns is overwritten by the next run of the same graph. It may not read from the device to decide
anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from lorry.engine.gpu.trace import Body, Trace, poison

WARM_UPS = 2
"""Runs before a capture: libraries allocate their workspaces and kernels are compiled in the first."""


class Graph(Protocol):
    """``run`` enqueues the body once more; the tensors that it answers are the same each time."""

    def run(self) -> tuple[Tensor, ...]: ...


class Graphs(Protocol):
    def capture(self, body: Body, inputs: Sequence[Tensor] = ()) -> Graph:
        """Runs the body a few times, then keeps it. ``inputs``: static buffers that are filled, whole, before each run;
        what they hold is lost with the capture, though a card leaves it there."""


class CudaGraphs:
    """All graphs of an engine share one pool of memory: they never run at the same time. One stream warms up and
    captures all of them, since libraries keep a workspace for each stream that they ever saw."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch types its members only

    def capture(self, body: Body, inputs: Sequence[Tensor] = ()) -> Graph:
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
    """For the CPU: the body under a graph's rules (``lorry.engine.gpu.trace``). What is recorded runs, with the values
    and at the addresses of the capture; a body that asks for anything else since, or reads a value on the host, raises.

    On a card a capture computes nothing. So ``inputs`` and the answers hold values here that cannot be mistaken for
    real ones until somebody fills the inputs and runs the graph.
    """

    def capture(self, body: Body, inputs: Sequence[Tensor] = ()) -> Graph:
        body()
        trace = Trace(body)
        for tensor in inputs:
            poison(tensor)
        trace.poison_outputs()
        return _StandIn(trace, torch.is_inference_mode_enabled())


class _StandIn:
    def __init__(self, trace: Trace, inference: bool) -> None:
        self._trace, self._inference = trace, inference

    def run(self) -> tuple[Tensor, ...]:
        with torch.inference_mode(self._inference):
            self._trace.run()
        return self._trace.outputs


__all__ = ["CudaGraphs", "Graph", "Graphs", "StandInGraphs"]
