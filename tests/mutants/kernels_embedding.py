"""Guards of embeddings and input gains: what an id may read, every column, and places beyond int32."""

from __future__ import annotations

from tests.mutants.guard import Guard

EMBEDDING = "kernels/lorry_kernels/ops/embedding.py"
INPUT_GAIN = "kernels/lorry_kernels/ops/input_gain.py"
TEST_EMBEDDING = "tests/kernels/test_ops_embedding.py"
TEST_PAIRS = "tests/kernels/test_ops_embedding_pairs.py"
TEST_INPUT_GAIN = "tests/kernels/test_ops_input_gain.py"
FAR = "tests/kernels/test_ops_far_rows.py"
EMBEDS = (f"{FAR}::test_rows_of_the_base_and_of_a_matrix_of_ones_own",)
REPLACES = (f"{FAR}::test_rows_that_stand_for_ids",)
GAINS = (f"{FAR}::test_input_gains",)
TAKES = (f"{FAR}::test_products_of_gained_rows",)
NAMED = "    if (own >= 0) & (own < slots):\n"
LOOK_UP = "        at = tl.load(offset + own.to(tl.int64) * stride_offset)\n"

GUARDS = (
    # What an id, and a slot, may read.
    Guard(
        "id_without_a_row_is_nan",
        EMBEDDING,
        '    nothing = float("nan")\n',
        "    nothing = 0.0\n",
        (f"{TEST_EMBEDDING}::test_an_id_without_a_row_is_nan_and_no_other_row",),
    ),
    Guard(
        "id_without_a_row_of_a_is_nan",
        EMBEDDING,
        'mask=found[:, None], other=float("nan"))',
        "mask=found[:, None], other=0.0)",
        (f"{TEST_EMBEDDING}::test_lora_by_id_with_a_gain",),
    ),
    Guard(
        "input_gain_leaves_x",
        INPUT_GAIN,
        "t == 0 or out.data_ptr() != x.data_ptr()",
        "True",
        (f"{TEST_EMBEDDING}::test_input_gains",),
    ),
    Guard(
        "embed_takes_every_column",
        EMBEDDING,
        "    token = tl.program_id(0)\n    h = tl.program_id(1) * BLOCK + ",
        "    token = tl.program_id(0)\n    h = ",
        (f"{TEST_PAIRS}::test_embed",),
    ),
    Guard(
        "embed_follows_no_slot_behind_the_last",
        EMBEDDING,
        "if (mine >= 0) & (mine < slots):",
        "if mine >= 0:",
        (f"{TEST_PAIRS}::test_a_slot_that_the_tables_lack_is_the_bases",),
    ),
    Guard(
        "own_matrix_has_its_own_vocabulary",
        EMBEDDING,
        "                known = tl.load(limit + mine)\n",
        "                known = known\n",
        (f"{TEST_PAIRS}::test_embed",),
    ),
    Guard(
        "replace_rows_takes_every_column",
        EMBEDDING,
        "    if row >= 0:\n        h = tl.program_id(1) * BLOCK + ",
        "    if row >= 0:\n        h = ",
        (f"{TEST_PAIRS}::test_replace_rows",),
    ),
    Guard(
        "replace_rows_follows_no_slot_behind_the_last",
        EMBEDDING,
        "if (own >= 0) & (own < slots):",
        "if own >= 0:",
        (f"{TEST_PAIRS}::test_a_slot_that_the_tables_lack_is_the_bases",),
    ),
    Guard(
        "a_map_ends_with_its_vocabulary",
        EMBEDDING,
        " & (name >= 0) & (name < tl.load(limit + own)):",
        " & (name >= 0):",
        (f"{TEST_PAIRS}::test_replace_rows",),
    ),
    Guard(
        "a_plane_is_the_ids_own_row",
        EMBEDDING,
        "found = real & (name >= 0) & (name < tl.load(limit + slot))",
        "found = real & (name >= 0)",
        (f"{TEST_PAIRS}::test_embedding_planes",),
    ),
    Guard(
        "input_gain_takes_every_column",
        INPUT_GAIN,
        "    k = tl.program_id(1) * BLOCK + ",
        "    k = ",
        (f"{TEST_INPUT_GAIN}::test_input_gain",),
    ),
    Guard(
        "take_gained_takes_every_column",
        INPUT_GAIN,
        "        n = tl.program_id(1) * BLOCK + ",
        "        n = ",
        (f"{TEST_INPUT_GAIN}::test_take_gained",),
    ),
    Guard(
        "input_gain_follows_no_slot_behind_the_last",
        INPUT_GAIN,
        f"{NAMED}{LOOK_UP}    value",
        f"    if own >= 0:\n{LOOK_UP}    value",
        (f"{TEST_INPUT_GAIN}::test_a_slot_that_the_tables_lack_has_no_gain",),
    ),
    Guard(
        "take_gained_follows_no_slot_behind_the_last",
        INPUT_GAIN,
        f"{NAMED}{LOOK_UP}    if",
        f"    if own >= 0:\n{LOOK_UP}    if",
        (f"{TEST_INPUT_GAIN}::test_a_slot_that_the_tables_lack_has_no_gain",),
    ),
    # A row is int64 before it is multiplied.
    Guard(
        "rows_of_the_base_are_int64", EMBEDDING, "weight + row * hidden", "weight + (row * hidden).to(tl.int32)", EMBEDS
    ),
    Guard(
        "rows_of_an_own_matrix_are_int64",
        EMBEDDING,
        "begin = at // ALIGN * ALIGN + row * hidden",
        "begin = (at // ALIGN * ALIGN + row * hidden).to(tl.int32)",
        EMBEDS,
    ),
    Guard(
        "embedded_rows_are_int64",
        EMBEDDING,
        "out + token.to(tl.int64) * stride_out",
        "out + (token.to(tl.int64) * stride_out).to(tl.int32)",
        EMBEDS,
    ),
    Guard(
        "places_of_planes_are_int64",
        EMBEDDING,
        "place = (start + m).to(tl.int64)[:, None] * stride_place",
        "place = ((start + m)[:, None] * stride_place).to(tl.int32)",
        (f"{FAR}::test_planes",),
    ),
    Guard(
        "rows_that_stand_for_ids_are_int64",
        EMBEDDING,
        "row.to(tl.int64) * hidden",
        "(row.to(tl.int64) * hidden).to(tl.int32)",
        REPLACES,
    ),
    Guard(
        "replaced_rows_are_int64",
        EMBEDDING,
        "y + token.to(tl.int64) * stride_y",
        "y + (token.to(tl.int64) * stride_y).to(tl.int32)",
        REPLACES,
    ),
    Guard(
        "rows_before_a_gain_are_int64",
        INPUT_GAIN,
        "x + row.to(tl.int64) * stride_x",
        "x + (row.to(tl.int64) * stride_x).to(tl.int32)",
        GAINS,
    ),
    Guard(
        "rows_behind_a_gain_are_int64",
        INPUT_GAIN,
        "out + row.to(tl.int64) * stride_out",
        "out + (row.to(tl.int64) * stride_out).to(tl.int32)",
        GAINS,
    ),
    Guard(
        "rows_of_gained_products_are_int64",
        INPUT_GAIN,
        "gained + row.to(tl.int64) * stride_gained",
        "gained + (row.to(tl.int64) * stride_gained).to(tl.int32)",
        TAKES,
    ),
    Guard(
        "rows_that_take_them_are_int64",
        INPUT_GAIN,
        "y + row.to(tl.int64) * stride_y",
        "y + (row.to(tl.int64) * stride_y).to(tl.int32)",
        TAKES,
    ),
)

__all__ = ["GUARDS"]
