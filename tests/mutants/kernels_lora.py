"""Guards of the multi-LoRA kernels: routing, shrink, expand and what the host checks for them."""

from __future__ import annotations

from tests.mutants.guard import Guard

OPS = "kernels/lorry_kernels/ops"
ROUTING, SHRINK, EXPAND = f"{OPS}/routing.py", f"{OPS}/shrink.py", f"{OPS}/expand.py"
LORA = f"{OPS}/lora.py"
TEST_ROUTING = "tests/kernels/test_ops_routing.py"
TEST_BITS = "tests/kernels/test_ops_lora_bits.py"
TEST_CALLS = "tests/kernels/test_ops_lora_calls.py"
TEST_LORA = "tests/kernels/test_ops_lora.py"
REPLAY = f"{TEST_BITS}::test_replay_after_everything_changed"
RANKS = f"{TEST_LORA}::test_ranks_of_all_kinds_in_one_batch"

GUARDS = (
    # Who meets which adapter.
    Guard(
        "kernel_compares_generations",
        ROUTING,
        "    good = named & (held == wanted)\n",
        "    good = named\n",
        (f"{TEST_ROUTING}::test_a_slot_that_was_filled_anew_runs_nothing_for_those_who_named_the_old_one",),
    ),
    Guard(
        "kernel_looks_up_no_slot_behind_the_last",
        ROUTING,
        "named = (own >= 0) & (own < slots)",
        "named = (own >= 0) & (own <= slots)",
        (f"{TEST_ROUTING}::test_a_slot_out_of_range_is_a_fault_on_the_device",),
    ),
    Guard(
        "kernel_reports_a_fault",
        ROUTING,
        "(own != -1) & (good == 0)\n",
        "(own >= 0) & (good == 0) & (own < slots)\n",
        (f"{TEST_ROUTING}::test_a_slot_out_of_range_is_a_fault_on_the_device",),
    ),
    Guard(
        "tile_holds_no_more_than_its_rows",
        ROUTING,
        "    left = tl.minimum(total - index, BM)\n",
        "    left = total - index\n",
        (f"{TEST_ROUTING}::test_capacity_is_reached_and_never_passed",),
    ),
    Guard(
        "rows_of_a_slot_keep_their_order",
        ROUTING,
        "(at[None, :] < mine[:, None])",
        "(at[None, :] > mine[:, None])",
        (f"{TEST_ROUTING}::test_another_generation_is_a_fault_and_gets_no_tile",),
    ),
    Guard(
        "slots_of_a_list_are_in_range",
        ROUTING,
        "            -1 <= slot < count,\n",
        "            True,\n",
        (f"{TEST_ROUTING}::test_slots_in_a_list_are_checked_by_place",),
    ),
    # What is summed.
    Guard("every_plane_is_added", EXPAND, "tl.static_range(1, SPLIT)", "tl.static_range(1, SPLIT - 1)", (REPLAY,)),
    Guard("last_chunk_of_b", EXPAND, "range(0, chunks, CHUNKS)", "range(0, chunks - 1, CHUNKS)", (RANKS,)),
    Guard(
        "last_group_of_a",
        SHRINK,
        "axis=0) + CHUNKS - 1) // CHUNKS\n",
        "axis=0)) // CHUNKS\n",
        (RANKS,),
    ),
    Guard(
        "planes_end_with_the_slots_chunks",
        SHRINK,
        "acc, mask=real[:, None] & held[None, :])",
        "acc, mask=real[:, None])",
        (f"{TEST_LORA}::test_no_plane_is_written_beyond_a_slices_own_chunks",),
    ),
    Guard(
        "groups_go_round_programs",
        SHRINK,
        "        first = work // base\n",
        "        first = 0\n",
        (f"{TEST_BITS}::test_whatever_the_number_of_programs",),
    ),
    Guard(
        "features_end_at_k",
        SHRINK,
        "within = (begin + k < features)[None, :]",
        "within = (begin + k < features - 1)[None, :]",
        (f"{TEST_LORA}::test_pairs",),
    ),
    Guard("delta_is_scaled", EXPAND, "new = acc * factor\n", "new = acc\n", (REPLAY,)),
    Guard("slice_reads_its_own_planes", EXPAND, "planes + s * stride_plane + ", "planes + ", (REPLAY,)),
    Guard(
        "shared_a_has_one_plane",
        EXPAND,
        "planes.stride(1) if plan.a_slices > 1 else 0,",
        "planes.stride(1),",
        (f"{TEST_LORA}::test_pairs",),
    ),
    Guard(
        "kernel_gain_leaves_the_bias",
        EXPAND,
        "(old - outside[None, :] + new) + outside[None, :]",
        "(old + new)",
        (f"{TEST_LORA}::test_an_adapter_with_gain_and_no_lora_here",),
    ),
    Guard(
        "gain_without_lora_counts",
        EXPAND,
        "changed = (chunks > 0) | (gain_at >= 0) | (addend_at >= 0)",
        "changed = chunks > 0",
        (f"{TEST_LORA}::test_an_adapter_with_gain_and_no_lora_here",),
    ),
    # What the host checks before a kernel follows it.
    Guard(
        "chunk_is_aligned",
        LORA,
        "        need(offset % step == 0,",
        "        need(True,",
        (f"{TEST_CALLS}::test_misplaced_chunks",),
    ),
    Guard(
        "chunk_lies_in_the_arena",
        LORA,
        "            offset + RANKS * width <= arena_elements,\n",
        "            True,\n",
        (f"{TEST_CALLS}::test_misplaced_chunks",),
    ),
    Guard(
        "chunks_are_apart",
        LORA,
        "        need(not near,",
        "        need(True,",
        (f"{TEST_CALLS}::test_misplaced_chunks",),
    ),
    Guard(
        "as_many_chunks_of_a_as_of_b",
        LORA,
        "            own >= wanted if shared else own == wanted,\n",
        "            True,\n",
        (f"{TEST_CALLS}::test_planes_that_nobody_writes_are_never_read",),
    ),
    Guard(
        "a_routing_counts_in_int32",
        ROUTING,
        'need_tensor("tile", self.tile, dtype=torch.int32, ',
        'need_tensor("tile", self.tile, ',
        (f"{TEST_CALLS}::test_a_routing_of_other_buffers_cannot_be_made",),
    ),
    Guard(
        "vectors_begin_where_the_hints_say",
        SHRINK,
        '"vectors", vectors, dtype=torch.float32, shape=(None,), device=device, contiguous=True, aligned=16)',
        '"vectors", vectors, dtype=torch.float32, shape=(None,), device=device, contiguous=True)',
        (f"{TEST_CALLS}::test_bad_calls",),
    ),
    Guard(
        "shrink_takes_a_routing_of_its_phase",
        SHRINK,
        "        routing.tile_rows == plan.tiles.block_m,\n",
        "        True,\n",
        (f"{TEST_CALLS}::test_a_routing_of_the_other_phase",),
    ),
)

__all__ = ["GUARDS"]
