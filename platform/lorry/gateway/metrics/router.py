"""What inference-gateway routers read from a model server, by the names of their protocol.

The protocol's LoRA metric carries names of adapters as label values, which no other metric here may: so all of this is
on a page of its own, that one metric is left out unless it is asked for, and the names are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lorry.gateway.live import LiveCall
from lorry.gateway.metrics import catalog as m
from lorry.gateway.metrics.families import Families
from lorry.gateway.metrics.of_engines import Answer


def router_families(
    found: Families, answers: Sequence[Answer], live: Iterable[LiveCall], most_adapters: int, now: float
) -> None:
    """Of all engines together, since a router sees one server. Nothing where none is up: then this is none."""
    engines = [answer.metrics for answer in answers if answer.metrics is not None]
    if not engines:
        return
    found.add(m.ROUTER_WAITING, sum(engine.waiting for engine in engines))
    found.add(m.ROUTER_RUNNING, sum(engine.running for engine in engines))
    occupancy = sum(engine.occupancy for engine in engines) / len(engines)
    found.add(m.ROUTER_KV, occupancy)
    found.add(m.ROUTER_KV_OLD, occupancy)
    pages = sum(sum(engine.pages.values()) for engine in engines)
    found.add(m.ROUTER_CACHE, 1, str(engines[0].page_tokens), str(pages))
    if most_adapters:
        slots = sum(sum(engine.slots.values()) for engine in engines)
        running, waiting = adapters_of(live, most_adapters)
        found.add(m.ROUTER_LORA, now, str(slots), ",".join(running), ",".join(waiting))


def adapters_of(live: Iterable[LiveCall], most: int) -> tuple[list[str], list[str]]:
    """Names of adapters that answers are made with, and of further ones that are waited for; at most so many together,
    those of running answers first. By the bare name, however the request named it."""
    running: dict[str, None] = {}
    waiting: dict[str, None] = {}
    for call in live:
        if call.resolution.adapter:
            (running if call.relay.answers else waiting)[call.resolution.adapter] = None
    first = list(running)[:most]
    return first, [name for name in waiting if name not in running][: most - len(first)]


__all__ = ["adapters_of", "router_families"]
