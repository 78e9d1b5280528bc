"""Nobody waits for one long prompt, and nobody waits for ever: in virtual time, with the settings of the defaults."""

import random
from itertools import count

import pytest

from lorry.config import MemoryConfig, SchedulerConfig
from lorry.scheduler import AgeingBound
from tests.support.simulator import Arrival, Life, Simulator, StepCost, quantile

CHATS = 20
LONG = 2000
"""Prompt tokens of the long request; the context's limit is 2048 by default."""


def chats(seed: int, every_s: float) -> list[Arrival]:
    rng = random.Random(seed)
    return [
        Arrival(0.3 + i * every_s * rng.uniform(0.5, 1.5), f"chat{i}", rng.randrange(32, 97), rng.randrange(16, 49))
        for i in range(CHATS)
    ]


def ttfts(arrivals: list[Arrival]) -> list[float]:
    """Of the chats."""
    lives = Simulator().run(arrivals)
    assert all(life.error is None for life in lives.values())
    return [life.ttft for name, life in lives.items() if name.startswith("chat")]


@pytest.mark.parametrize("every_s", [0.0, 0.05, 0.2, 0.4], ids=lambda s: f"{s}s_apart")
@pytest.mark.parametrize("adapter", [None, "tuned"])
def test_one_long_prefill_among_twenty_chats(every_s: float, adapter: str | None) -> None:
    """It comes early or in their midst: their p95 TTFT is at most 1.5 times what it is without.

    From a burst, just before which it comes, to a machine that is half idle. Not shown is the load that just takes
    every seat (0.1 s apart here): there whatever is added, in any order, becomes a queue.
    """
    without: list[float] = []
    beside: list[float] = []
    for seed in range(10):
        among = chats(seed, every_s)
        without.extend(ttfts(among))
        for at in (0.25 + 2.5 * every_s, 0.25 + 9.5 * every_s):
            beside.extend(ttfts([*among, Arrival(at, "long", LONG, 16, adapter)]))
    ratio = quantile(beside, 0.95) / quantile(without, 0.95)
    assert ratio <= 1.5, f"p95 TTFT {quantile(beside, 0.95):.3f} s, {quantile(without, 0.95):.3f} s without"


@pytest.mark.parametrize("every_s", [0.05, 0.15])
def test_the_long_one_is_not_held_up_for_ever_either(every_s: float) -> None:
    """While chats keep coming the long prompt gets on: its TTFT is bounded by its own work, not by when they stop."""
    among = [Arrival(0.3 + i * every_s, f"chat{i}", 64, 32) for i in range(2000)]
    alone = Simulator().run([Arrival(0.0, "long", LONG, 4)])["long"]
    lives = Simulator(SchedulerConfig(max_queue=10_000, max_queue_per_tenant=10_000)).run(
        [*among, Arrival(1.0, "long", LONG, 4)], until="long"
    )
    assert lives["long"].ttft <= 10 * alone.ttft


ONE_SLOT = MemoryConfig(max_slots=1, max_rank=8)


def b_among_many_a(sequences: int, out: int, cost: StepCost) -> tuple[Life, list[Life]]:
    """B's life and those of the A. They come faster than they are served, as long as B has not ended."""
    simulator = Simulator(
        SchedulerConfig(max_sequences=sequences, max_queue=10_000, max_queue_per_tenant=10_000), ONE_SLOT, cost
    )
    numbers = count()
    arrivals = [Arrival(i * 0.01, f"a{next(numbers)}", 8, out, "A") for i in range(50)]
    arrivals.append(Arrival(0.005, "b", 8, 4, "B"))
    arrivals.extend(Arrival(0.5 + i * 0.01, f"a{next(numbers)}", 8, out, "A") for i in range(2000))
    lives = simulator.run(arrivals, until="b")
    return lives.pop("b"), list(lives.values())


@pytest.mark.parametrize("sequences", [1, 4, 16])
@pytest.mark.parametrize("out", [4, 40])
@pytest.mark.parametrize("step_s", [0.002, 0.05], ids=["32_plans_are_sooner", "1_s_is_sooner"])
def test_b_starts_within_the_bound_on_the_only_slot(sequences: int, out: int, step_s: float) -> None:
    """A B A A A ... on one slot. B starves 32 plans or one second after it was first passed over, whichever is sooner;
    from then on nobody new joins the slot, and it starts when who runs there has ended."""
    cost = StepCost(fixed_s=step_s)
    b, others = b_among_many_a(sequences, out, cost)
    assert b.started is not None
    bound = AgeingBound()
    longest_step = cost.fixed_s + sequences * 8 * cost.prefill_token_s + cost.load_s + sequences * cost.decode_row_s
    starves_after = min(bound.seconds + longest_step, bound.plans * longest_step)
    running_out = (out + 1) * longest_step
    assert b.started - b.arrived <= longest_step + starves_after + running_out
    if sequences > 1:
        later = [life.started for life in others if life.arrived > b.arrived and life.started is not None]
        overtook = [started for started in later if started < b.started]
        assert overtook, "B was passed over, or nothing is shown"
    assert all(life.error is None for life in others)
