"""Guards of embeddings and input gains: what a row is multiplied with to find its place is int64 before."""

from __future__ import annotations

from tests.mutants.guard import Guard

EMBEDDING = "kernels/lorry_kernels/ops/embedding.py"
INPUT_GAIN = "kernels/lorry_kernels/ops/input_gain.py"
FAR = "tests/kernels/test_ops_far_rows.py"
EMBEDS = (f"{FAR}::test_rows_of_the_base_and_of_a_matrix_of_ones_own",)
REPLACES = (f"{FAR}::test_rows_that_stand_for_ids",)
GAINS = (f"{FAR}::test_input_gains",)
TAKES = (f"{FAR}::test_products_of_gained_rows",)

GUARDS = (
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
