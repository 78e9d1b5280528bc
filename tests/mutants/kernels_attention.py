"""Guards of paged attention: who sees which key, what is never read, and that a fault is loud."""

from __future__ import annotations

from tests.mutants.guard import Guard

TILE = "kernels/lorry_kernels/ops/attention_tile.py"
DECODE = "kernels/lorry_kernels/ops/paged_decode.py"
DECODE_PLAN = "kernels/lorry_kernels/ops/decode_plan.py"
PREFILL = "kernels/lorry_kernels/ops/paged_prefill.py"
PREFILL_PLAN = "kernels/lorry_kernels/ops/prefill_plan.py"
WRITE = "kernels/lorry_kernels/ops/kv_write.py"
DECODED = "tests/kernels/test_ops_attention_decode.py"
FILLED = "tests/kernels/test_ops_attention_prefill.py"
WRITTEN = "tests/kernels/test_ops_attention_write.py"

GUARDS = (
    Guard(
        "values_behind_the_end_are_zeros",
        TILE,
        "values = tl.load(value_at, mask=alive[:, None] & inside, other=0.0)",
        "values = tl.load(value_at, mask=inside, other=0.0)",
        (f"{DECODED}::test_the_shipped_split_has_exact_borders",),
    ),
    Guard(
        "a_row_that_has_seen_no_key_has_no_peak",
        TILE,
        'safe = tl.where(high == -float("inf"), 0.0, high)',
        "safe = high",
        (f"{FILLED}::test_a_prompt_of_several_blocks_equals_the_loop",),
    ),
    Guard(
        "a_query_sees_no_later_key",
        TILE,
        "(position[None, :] <= last[:, None])",
        "(position[None, :] <= last[:, None] + 1)",
        (f"{FILLED}::test_prefill_equals_the_loop",),
    ),
    Guard(
        "a_query_sees_no_key_before_its_window",
        PREFILL,
        "first = tl.maximum(last - WINDOW + 1, 0)",
        "first = tl.maximum(last - WINDOW, 0)",
        (f"{FILLED}::test_a_prompt_of_several_blocks_equals_the_loop",),
    ),
    Guard(
        "a_tile_without_masks_is_seen_whole_by_the_first_query",
        PREFILL,
        "(cached + begin + 1) // TILE * TILE",
        "(cached + begin + 2) // TILE * TILE",
        (f"{FILLED}::test_prefill_equals_the_loop",),
    ),
    Guard(
        "a_tile_without_masks_lies_in_the_last_querys_window",
        PREFILL,
        "full = (tl.maximum(cached + final - WINDOW + 1, 0) + TILE - 1)",
        "full = (tl.maximum(cached + final - WINDOW, 0) + TILE - 1)",
        (f"{FILLED}::test_a_prompt_of_several_blocks_equals_the_loop",),
    ),
    Guard(
        "a_block_writes_its_own_queries_only",
        PREFILL,
        "used = (token <= final)[:, None]",
        "used = (token <= final + 1)[:, None]",
        (f"{FILLED}::test_rows_of_no_sequence_are_not_written_and_rows_may_be_slices",),
    ),
    Guard(
        "a_prefill_fault_is_nan",
        PREFILL,
        'result = tl.where(fault, float("nan"), result)',
        "result = tl.where(fault, 0.0, result)",
        (f"{FILLED}::test_a_fault_gets_nan_and_no_other_sequence_sees_it",),
    ),
    Guard(
        "queries_outside_the_tokens_make_no_block",
        PREFILL_PLAN,
        "good = (start >= 0) & (start <= end) & (end <= tokens)",
        "good = (start <= end) & (end <= tokens)",
        (f"{FILLED}::test_starts_that_are_none_make_no_block",),
    ),
    Guard(
        "a_split_ends_where_the_next_begins",
        DECODE,
        "end = tl.minimum((split + 1) * SPLIT, length)",
        "end = tl.minimum((split + 1) * SPLIT + 1, length)",
        (f"{DECODED}::test_the_shipped_split_has_exact_borders",),
    ),
    Guard(
        "decode_sees_no_key_before_the_window",
        DECODE,
        "low = tl.maximum(length - WINDOW, 0) if WINDOW else 0",
        "low = tl.maximum(length - WINDOW - 1, 0) if WINDOW else 0",
        (f"{DECODED}::test_decode_equals_the_loop",),
    ),
    Guard(
        "page_offsets_are_int64",
        TILE,
        "pages.to(tl.int64) * stride_page",
        "(pages * stride_page).to(tl.int32)",
        (f"{DECODED}::test_offsets_beyond_int32_reach_their_page",),
    ),
    Guard(
        "written_places_are_int64",
        WRITE,
        "place = (at // PAGE) * stride_page + head",
        "place = ((at // PAGE) * stride_page).to(tl.int32) + head",
        (f"{WRITTEN}::test_rows_and_pages_beyond_int32_are_reached",),
    ),
    Guard(
        "rows_of_new_keys_are_int64",
        WRITE,
        "key = tl.load(k + (line * stride_k_row + head",
        "key = tl.load(k + ((line * stride_k_row).to(tl.int32) + head",
        (f"{WRITTEN}::test_rows_and_pages_beyond_int32_are_reached",),
    ),
    Guard(
        "rows_of_new_values_are_int64",
        WRITE,
        "v + (line * stride_v_row + head",
        "v + ((line * stride_v_row).to(tl.int32) + head",
        (f"{WRITTEN}::test_rows_and_pages_beyond_int32_are_reached",),
    ),
    Guard(
        "rows_of_queries_are_int64",
        PREFILL,
        "q + (row * stride_q_row + head",
        "q + ((row * stride_q_row).to(tl.int32) + head",
        (f"{FILLED}::test_rows_beyond_int32_are_reached",),
    ),
    Guard(
        "rows_of_results_are_int64",
        PREFILL,
        "out + (row * stride_out_row + head",
        "out + ((row * stride_out_row).to(tl.int32) + head",
        (f"{FILLED}::test_rows_beyond_int32_are_reached",),
    ),
    Guard(
        "rows_of_decoded_queries_are_int64",
        DECODE,
        "q + row * stride_q_row + (head",
        "q + (row * stride_q_row).to(tl.int32) + (head",
        (f"{DECODED}::test_rows_beyond_int32_are_read_and_written",),
    ),
    Guard(
        "rows_of_decoded_results_are_int64",
        DECODE,
        "out + row * stride_out_row + (head",
        "out + (row * stride_out_row).to(tl.int32) + (head",
        (f"{DECODED}::test_rows_beyond_int32_are_read_and_written",),
    ),
    Guard(
        "rows_of_merged_results_are_int64",
        DECODE,
        "out + row * stride_out_row + head * stride_out_head",
        "out + (row * stride_out_row).to(tl.int32) + head * stride_out_head",
        (f"{DECODED}::test_rows_beyond_int32_are_read_and_written",),
    ),
    # What no layer looks at again.
    Guard(
        "splits_are_kept_where_the_hints_say",
        DECODE,
        "shape=(capacity, heads, 2), device=device, contiguous=True, aligned=LANE",
        "shape=(capacity, heads, 2), device=device, contiguous=True",
        (f"{DECODED}::test_a_plan_and_a_workspace_of_other_buffers_cannot_be_made",),
    ),
    Guard(
        "peaks_are_as_many_as_partial_sums",
        DECODE,
        "shape=(capacity, heads, 2),",
        "shape=(None, heads, 2),",
        (f"{DECODED}::test_a_plan_and_a_workspace_of_other_buffers_cannot_be_made",),
    ),
    Guard(
        "a_decode_plan_counts_in_int32",
        DECODE_PLAN,
        '        check_numbers("parts", self.parts, (None, 3), self.item.device)\n',
        "",
        (f"{DECODED}::test_a_plan_and_a_workspace_of_other_buffers_cannot_be_made",),
    ),
    Guard(
        "a_decode_plans_count_is_one",
        DECODE_PLAN,
        '        check_numbers("items", self.items, (1,), self.item.device)\n',
        "",
        (f"{DECODED}::test_a_plan_and_a_workspace_of_other_buffers_cannot_be_made",),
    ),
    Guard(
        "a_prefill_plan_counts_in_int32",
        PREFILL_PLAN,
        '        check_numbers("items", self.items, (1,), device)\n',
        "",
        (f"{FILLED}::test_a_plan_of_other_buffers_cannot_be_made",),
    ),
    Guard(
        "a_rows_splits_are_merged_each_once",
        DECODE,
        "tl.where(part == 0, row, behind + part - 1)",
        "tl.where(part == 0, row, behind + part)",
        (f"{DECODED}::test_the_shipped_split_has_exact_borders",),
    ),
    Guard(
        "a_decode_fault_is_nan",
        DECODE,
        'result = tl.where(splits < 0, float("nan"), result)',
        "result = tl.where(splits < 0, 0.0, result)",
        (f"{DECODED}::test_a_row_without_keys_gets_zeros_and_a_fault_gets_nan_and_no_other_row_sees_it",),
    ),
    Guard(
        "a_length_beyond_the_table_is_a_fault",
        DECODE_PLAN,
        "good = (length >= 0) & (length <= most) &",
        "good = (length >= 0) &",
        (f"{DECODED}::test_a_row_without_keys_gets_zeros_and_a_fault_gets_nan_and_no_other_row_sees_it",),
    ),
    Guard(
        "items_that_do_not_fit_are_not_counted",
        DECODE_PLAN,
        "tl.where(rows + ends <= capacity, ends, 0)",
        "ends",
        (f"{DECODED}::test_a_row_whose_splits_do_not_fit_gets_nan_and_the_others_their_own",),
    ),
    Guard(
        "a_slot_below_zero_is_not_written",
        WRITE,
        "written = ((at >= 0) & (at < slots))",
        "written = (at < slots)",
        (f"{WRITTEN}::test_rows_go_to_their_slots_and_nowhere_else",),
    ),
    Guard(
        "a_slot_behind_the_pages_is_not_written",
        WRITE,
        "written = ((at >= 0) & (at < slots))",
        "written = (at >= 0)",
        (f"{WRITTEN}::test_rows_go_to_their_slots_and_nowhere_else",),
    ),
)
