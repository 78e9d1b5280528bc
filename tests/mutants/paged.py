"""Guards of the device with a page arena: what is published, what is given back, whose rows answer."""

from __future__ import annotations

from tests.mutants.guard import Guard

ADAPTERS = "platform/lorry/engine/gpu/adapters.py"
TABLES = "platform/lorry/layers/slot_tables.py"
STORAGE = "tests/unit/engine/gpu/test_storage.py"
SCHEDULES = "tests/unit/engine/gpu/test_schedules.py"
FILL = "tests/unit/engine/gpu/test_foreign_fill.py"

GUARDS = (
    Guard(
        "damaged_pages_are_not_published",
        ADAPTERS,
        "        if not self._intact(entry, whole=True):\n            raise AdapterLoadFailed(",
        "        if False:\n            raise AdapterLoadFailed(",
        (f"{STORAGE}::test_damaged_bytes_are_never_published_or_kept[host]",),
    ),
    Guard(
        "pages_of_a_slot_are_read_again",
        ADAPTERS,
        "        return sums == entry.sums and",
        "        return True or",
        (f"{STORAGE}::test_damaged_bytes_are_never_published_or_kept[device]",),
    ),
    Guard(
        "an_image_says_what_its_matrices_add_up_to",
        ADAPTERS,
        "            image.extra_sums,\n",
        "            extra_sums(image.extras),\n",
        (f"{STORAGE}::test_damaged_embeddings_and_heads_are_never_published_or_kept[before]",),
    ),
    Guard(
        "pages_in_use_are_not_given_back",
        ADAPTERS,
        "            if chunk in held:\n",
        "            if False:\n",
        (f"{STORAGE}::test_a_chunk_in_use_is_not_given_back",),
    ),
    Guard(
        "copies_are_over_before_a_slot_is_published",
        "platform/lorry/engine/gpu/copies.py",
        "    finally:\n        copies.finish()\n",
        "    finally:\n        pass\n",
        (f"{STORAGE}::test_a_slot_is_published_when_its_copies_are_done",),
    ),
    Guard(
        "a_piece_that_is_not_aligned_is_not_published",
        TABLES,
        "(begins % ALIGN != 0) | (begins >= arena_bytes)",
        "(begins >= arena_bytes)",
        (f"{STORAGE}::test_a_bad_row_is_not_published",),
    ),
    Guard(
        "an_emptied_slot_has_no_generation",
        TABLES,
        "        self.generation[slot : slot + 1].fill_(NO_GENERATION)\n",
        "",
        (f"{STORAGE}::test_loads_and_unloads_in_any_order",),
    ),
    Guard(
        "a_page_is_behind_one_id",
        "platform/lorry/engine/gpu/pages.py",
        "        return self._free.pop()\n",
        "        return self._free[-1]\n",
        (f"{STORAGE}::test_more_than_the_arena_has_is_an_error_with_the_numbers",),
    ),
    Guard(
        "idle_pages_give_their_pages_back",
        "platform/lorry/engine/plan_runner.py",
        "        self._release_pages(plan.idle_pages)\n",
        "",
        (f"{SCHEDULES}::test_the_same_answers_whatever_comes_between",),
    ),
    Guard(
        "idle_chunks_give_their_pages_back",
        "platform/lorry/engine/plan_runner.py",
        "        self._adapters.release(plan.idle_chunks)\n",
        "",
        (f"{SCHEDULES}::test_the_same_answers_whatever_comes_between",),
    ),
    Guard(
        "a_graph_takes_no_values_of_the_host",
        "platform/lorry/engine/gpu/graphs.py",
        "        if name in self._FROM_HOST:\n",
        "        if False:\n",
        ("tests/unit/engine/gpu/test_graphs.py::test_a_body_that_takes_the_hosts_values_is_refused",),
    ),
    Guard(
        "a_fill_that_was_not_planned_answers_nothing",
        "platform/lorry/engine/gpu/runner.py",
        "                if any(faulty[begin:end]):\n",
        "                if False:\n",
        (f"{FILL}::test_another_generation_on_the_device_is_a_fault",),
    ),
)

__all__ = ["GUARDS"]
