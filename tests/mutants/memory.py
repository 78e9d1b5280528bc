"""Guards of memory: what adapters may take beside the KV pages, when it is free again, and what can never fit."""

from __future__ import annotations

from tests.mutants.guard import Guard

LEDGER = "platform/lorry/memory/ledger.py"
BUDGET = "platform/lorry/memory/budget.py"
RESIDENCY = "platform/lorry/residency/residency.py"
EXTRAS = "tests/unit/memory/test_extras.py"
RESIDENT = "tests/unit/residency/test_extras.py"

GUARDS = (
    Guard(
        "extras_have_a_cap",
        LEDGER,
        " or need.extra_bytes > self._extras.free:\n",
        ":\n",
        (f"{EXTRAS}::test_chunks_and_extras_come_together_or_not_at_all",),
    ),
    Guard(
        "adapters_leave_the_floor_of_kv",
        LEDGER,
        " or size > self.adapter_bytes_free or ",
        " or ",
        (f"{EXTRAS}::test_chunks_and_extras_together_leave_the_floor_of_kv",),
    ),
    Guard(
        "extras_are_of_the_one_budget",
        LEDGER,
        "        if size > self.bytes_free or ",
        "        if ",
        (f"{EXTRAS}::test_extras_and_pages_take_from_one_budget",),
    ),
    Guard(
        "extras_are_free_after_their_step",
        LEDGER,
        "        self._extras.release(grant.extra_bytes, at_step)\n",
        "        self._extras.release(grant.extra_bytes, -1)\n",
        (f"{EXTRAS}::test_extras_are_free_once_the_step_that_reads_them_is_done",),
    ),
    Guard(
        "memory_behind_extras_counts",
        LEDGER,
        "self._chunks.backed * split.chunk_bytes + self._extras.held\n",
        "self._chunks.backed * split.chunk_bytes\n",
        (f"{EXTRAS}::test_extras_get_the_memory_of_idle_pages_and_then_of_idle_chunks",),
    ),
    Guard(
        "the_floor_is_a_longest_sequence_at_least",
        BUDGET,
        "    floor = max(int(budget * config.kv_fraction), longest * page_bytes)\n",
        "    floor = int(budget * config.kv_fraction)\n",
        ("tests/unit/memory/test_budget.py::test_the_floor_is_one_longest_sequence_at_least",),
    ),
    Guard(
        "extras_leave_room_for_the_largest_rank",
        BUDGET,
        "    extras = min(int(budget * config.extras_fraction), left - largest * chunk_bytes)\n",
        "    extras = int(budget * config.extras_fraction)\n",
        ("tests/unit/memory/test_budget.py::test_extras_get_no_more_than_the_floor_and_the_largest_rank_leave",),
    ),
    Guard(
        "extras_that_never_fit_are_refused",
        RESIDENCY,
        "        if not 0 <= ready.extra_bytes <= most:\n",
        "        if False:\n",
        (f"{RESIDENT}::test_extras_over_the_cap_are_refused_at_once_with_numbers_and_remedy",),
    ),
    Guard(
        "extras_that_never_fit_are_refused_at_registration",
        "platform/lorry/adapters/extra_bytes.py",
        "    if most is None or size <= most:\n",
        "    if True:\n",
        ("tests/unit/adapters/test_extras_limit.py::test_what_the_engine_would_take_is_the_limit[llama-dtype0-4-IA3]",),
    ),
    Guard(
        "ranks_that_never_fit_are_refused",
        RESIDENCY,
        "        if not 0 <= ready.rank <= config.max_rank:\n",
        "        if False:\n",
        (f"{RESIDENT}::test_a_rank_over_the_limit_names_the_remedy",),
    ),
    Guard(
        "slots_wait_for_the_step_that_reads_them",
        "platform/lorry/residency/slots.py",
        "        self._ledger.free_adapter(row.grant, row.last_step)\n",
        "        self._ledger.free_adapter(row.grant, -1)\n",
        ("tests/unit/residency/test_in_flight.py::test_memory_of_a_lost_copy_waits_for_the_step_that_reads_it",),
    ),
)

__all__ = ["GUARDS"]
