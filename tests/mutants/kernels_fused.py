"""Guards of the fused kernels: edges of a draw, ties, rows that are not finite, rows that nobody owns."""

from __future__ import annotations

from tests.mutants.guard import Guard

SCAN = "kernels/lorry_kernels/ops/sampling_scan.py"
LOGPROBS = "kernels/lorry_kernels/ops/logprobs.py"
NORM = "kernels/lorry_kernels/ops/rms_norm.py"
OWN = "kernels/lorry_kernels/ops/own_weights.py"
ROTARY = "kernels/lorry_kernels/ops/rotary.py"
SAMPLING_TESTS = "tests/kernels/test_ops_sampling.py"

GUARDS = (
    Guard(
        "a draw takes the first mass beyond the target, not the one that reaches it",
        SCAN,
        "((drawn * (kept & 0xFFFFFF)) >> 24) + 1",
        "((drawn * (kept & 0xFFFFFF)) >> 24)",
        (f"{SAMPLING_TESTS}::test_a_target_on_an_edge_is_the_next_ids",),
    ),
    Guard(
        "top-k counts its last id in",
        SCAN,
        "number = want - passed if BY_COUNT",
        "number = want - passed - 1 if BY_COUNT",
        (f"{SAMPLING_TESTS}::test_top_k_cuts_among_equals",),
    ),
    Guard(
        "min-p bounds what is drawn from",
        SCAN,
        "kept = tl.minimum(kept, least)",
        "kept = kept + 0 * least",
        (f"{SAMPLING_TESTS}::test_every_pair_of_parameters",),
    ),
    Guard(
        "equals are told apart by id",
        SCAN,
        "(nth == place + 1)",
        "(nth == 1) & (place >= 0)",
        (f"{SAMPLING_TESTS}::test_a_flat_row_is_drawn_by_id",),
    ),
    Guard(
        "equals of earlier chunks come first",
        SCAN,
        "place -= tl.sum(tl.where(at < chunk, shares, 0), 0)",
        "place -= tl.sum(tl.where(at < 0, shares, 0), 0)",
        (f"{SAMPLING_TESTS}::test_a_flat_row_is_drawn_by_id",),
    ),
    Guard(
        "both zeros are one logit",
        SCAN,
        "bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)",
        "bits = x.to(tl.int32, bitcast=True)",
        (f"{SAMPLING_TESTS}::test_greedy_takes_the_lowest_id_of_equals",),
    ),
    Guard(
        "an infinity is not finite",
        SCAN,
        '(~(tl.abs(x) < float("inf")))',
        "(x != x)",
        (f"{SAMPLING_TESTS}::test_a_row_that_is_not_finite_is_named_and_no_other_notices",),
    ),
    Guard(
        "no temperature makes a weight of the likeliest that is not 1",
        SCAN,
        "rate = 1.0 / tl.maximum(temperature, 1e-200)",
        "rate = 1.0 / temperature",
        (f"{SAMPLING_TESTS}::test_extreme_temperatures_stay_finite",),
    ),
    Guard(
        "a rank counts equals of lower ids",
        LOGPROBS,
        "((x == own) & (ids < token))",
        "((x == own) & (ids > token))",
        ("tests/kernels/test_ops_logprobs.py::test_rows_equal_the_loop_and_the_cpu",),
    ),
    Guard(
        "what is normed is the residual as it is kept",
        NORM,
        "        x = held.to(tl.float32)\n",
        "",
        ("tests/kernels/test_ops_norm.py::test_rms_norm",),
    ),
    Guard(
        "a token without a weight of its own has the base's",
        OWN,
        "return tl.where(has, own, base)",
        "return own",
        ("tests/kernels/test_ops_norm.py::test_rms_norm",),
    ),
    Guard(
        "a padded row writes no page",
        ROTARY,
        "if (slot >= 0) & (slot < places):",
        "if slot < places:",
        ("tests/kernels/test_ops_rotary.py::test_q_k_and_v",),
    ),
    Guard(
        "a row beyond the pages writes none",
        ROTARY,
        "if (slot >= 0) & (slot < places):",
        "if (slot >= 0) & (slot <= places):",
        ("tests/kernels/test_ops_rotary.py::test_q_k_and_v",),
    ),
)

__all__ = ["GUARDS"]
