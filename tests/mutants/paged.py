"""Guards of the device with a page arena: what is published, what is given back, whose rows answer."""

from __future__ import annotations

from tests.mutants.guard import Guard

ADAPTERS = "platform/lorry/engine/gpu/adapters.py"
TABLES = "platform/lorry/layers/slot_tables.py"
STORAGE = "tests/unit/engine/gpu/test_storage.py"
ROWS = "tests/unit/engine/gpu/test_storage_rows.py"
SCHEDULES = "tests/unit/engine/gpu/test_schedules.py"
FILL = "tests/unit/engine/gpu/test_foreign_fill.py"
RUNNER = "platform/lorry/engine/gpu/runner.py"
TRACE = "platform/lorry/engine/gpu/trace.py"
GRAPHS = "tests/unit/engine/gpu/test_graphs.py"
STAND_IN = "tests/unit/engine/gpu/test_stand_in.py"
CARD = "tests/unit/cli/test_serve_on_a_card.py"
STEP = "tests/unit/engine/gpu/test_captured_step.py"

GUARDS = (
    Guard(
        "embeddings_and_heads_are_pinned_too",
        "platform/lorry/adapters/image/packed.py",
        "room, begin = self._room(arena_bytes(extras)), 0",
        "room, begin = mapped(arena_bytes(extras)), 0",
        ("tests/unit/adapters/test_packed.py::test_all_that_is_copied_to_a_device_is_locked",),
    ),
    Guard(
        "memory_is_unlocked_before_it_goes",
        "platform/lorry/adapters/image/memory.py",
        "            self._locks.unlock(self._address)\n",
        "            pass\n",
        ("tests/unit/adapters/test_packed.py::test_all_that_is_copied_to_a_device_is_locked",),
    ),
    Guard(
        "chunks_of_a_and_b_are_in_pairs",
        "platform/lorry/layers/slot_tables.py",
        "alone = (a != b).any(1) | ",
        "alone = ",
        ("tests/unit/engine/gpu/test_storage_rows.py::test_a_chunk_without_its_other_half_is_not_published",),
    ),
    Guard(
        "chunks_are_filled_from_the_first_block",
        "platform/lorry/layers/slot_tables.py",
        " | (a[:, 1:] & ~a[:, :-1]).any(1)\n",
        "\n",
        ("tests/unit/engine/gpu/test_storage_rows.py::test_a_chunk_without_its_other_half_is_not_published",),
    ),
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
        "(begins % ALIGN != 0).any() or ",
        "",
        (f"{ROWS}::test_a_bad_row_is_not_published",),
    ),
    Guard(
        "a_piece_ends_in_its_page",
        TABLES,
        "        if over.any():\n",
        "        if False:\n",
        (f"{ROWS}::test_a_piece_that_ends_behind_its_page_is_not_published",),
    ),
    Guard(
        "a_piece_is_not_in_nobodys_page",
        TABLES,
        "begins >= pages * page_bytes",
        "begins > pages * page_bytes",
        (f"{ROWS}::test_nobodys_page_is_outside_the_arena",),
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
        (f"{ROWS}::test_more_than_the_arena_has_is_an_error_with_the_numbers",),
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
        "platform/lorry/engine/gpu/hearing.py",
        "    if name in _FROM_HOST:\n",
        "    if False:\n",
        (f"{GRAPHS}::test_a_body_that_takes_the_hosts_values_is_refused",),
    ),
    Guard(
        "a_graph_copies_nothing_to_the_host",
        "platform/lorry/engine/gpu/hearing.py",
        "        if name in _TO_HOST:\n",
        "        if False:\n",
        (f"{GRAPHS}::test_a_body_that_reads_on_the_host_is_refused",),
    ),
    Guard(
        "a_graph_keeps_the_values_of_its_capture",
        TRACE,
        "        if old != new:\n",
        "        if False:\n",
        (f"{STAND_IN}::test_a_value_that_changed_since_the_capture_is_named",),
    ),
    Guard(
        "a_kernels_launch_is_part_of_a_graph",
        "kernels/lorry_kernels/ops/launches.py",
        "        if _HERE.listener is None or warmup:\n",
        "        if True:\n",
        (f"{STAND_IN}::test_a_kernels_argument_that_changed_is_named",),
    ),
    Guard(
        "a_graph_keeps_the_addresses_of_its_capture",
        TRACE,
        "        return _Place(value.data_ptr(), ",
        "        return _Place(0, ",
        (f"{STAND_IN}::test_a_buffer_that_was_replaced_is_named",),
    ),
    Guard(
        "what_was_captured_is_what_runs",
        TRACE,
        "            return self._calls[step - 1].again()\n",
        "            return call()\n",
        (f"{STAND_IN}::test_nothing_moves_between_runs",),
    ),
    Guard(
        "a_graphs_allocation_holds_what_others_left",
        TRACE,
        "        if self.op.allocates:\n",
        "        if False:\n",
        (f"{STAND_IN}::test_an_allocation_holds_what_others_left_there",),
    ),
    Guard(
        "a_capture_leaves_nothing_in_the_inputs",
        "platform/lorry/engine/gpu/graphs.py",
        "        for tensor in inputs:\n",
        "        for tensor in ():\n",
        (f"{STAND_IN}::test_a_run_without_new_inputs_is_seen",),
    ),
    Guard(
        "a_runners_graphs_know_their_inputs",
        RUNNER,
        "self._graphs.capture(lambda: self._decode(inputs, form), (inputs.packed,))",
        "self._graphs.capture(lambda: self._decode(inputs, form))",
        (f"{STEP}::test_a_step_without_new_inputs_is_seen",),
    ),
    Guard(
        "a_captured_steps_inputs_are_new",
        RUNNER,
        "        inputs.packed.copy_(upload(",
        "        inputs.packed.clone().copy_(upload(",
        (f"{FILL}::test_the_same_graph_runs_whatever_was_loaded_since",),
    ),
    Guard(
        "an_adapters_own_vocabulary_is_compiled_for",
        "platform/lorry/engine/gpu/sampler.py",
        "    for rows in (logits[:1], torch.zeros(1, other, dtype=logits.dtype, device=logits.device)):\n",
        "    for rows in (logits[:1],):\n",
        ("tests/unit/engine/gpu/test_warm_draws.py::test_every_vocabularys_kernels_are_compiled_at_the_start",),
    ),
    Guard(
        "a_device_that_is_not_there_is_refused",
        "platform/lorry/engine/gpu/card.py",
        '    if "refused" in found:\n',
        "    if False:\n",
        (f"{CARD}::test_a_device_that_is_not_there_is_refused_before_anything_starts",),
    ),
    Guard(
        "a_card_that_does_not_hold_the_weights_is_refused",
        "platform/lorry/engine/gpu/settings.py",
        "    if room <= 0:\n",
        "    if False:\n",
        (f"{CARD}::test_a_card_that_does_not_hold_the_weights_is_refused_with_the_numbers",),
    ),
    Guard(
        "an_engines_refusal_is_said_in_its_words",
        "platform/lorry/engine/launch.py",
        "        if status == CONFIG_STATUS and refusal:\n",
        "        if False:\n",
        ("tests/unit/edges/test_supervise.py::test_a_base_that_cannot_be_served_fails_the_first_start_at_once",),
    ),
    Guard(
        "a_fill_that_was_not_planned_answers_nothing",
        RUNNER,
        "                if any(faulty[begin:end]):\n",
        "                if False:\n",
        (f"{FILL}::test_another_generation_on_the_device_is_a_fault",),
    ),
)

__all__ = ["GUARDS"]
