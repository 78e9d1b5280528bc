"""Guards of the ahead-of-time gate and of the tuning table: what would let bad code, or a wrong kernel, through."""

from __future__ import annotations

from tests.mutants.guard import Guard

GATE = "kernels/lorry_kernels/aot/gate.py"
FLOW = "kernels/lorry_kernels/aot/flow.py"
PTX = "kernels/lorry_kernels/aot/ptx.py"
COMPILE = "kernels/lorry_kernels/aot/compile.py"
MAIN = "kernels/lorry_kernels/aot/__main__.py"
SHAPES = "kernels/lorry_kernels/aot/build.py"
EXPAND = "kernels/lorry_kernels/ops/expand.py"
GAIN = "kernels/lorry_kernels/ops/input_gain.py"
ROTARY = "kernels/lorry_kernels/ops/rotary.py"
SAMPLING = "kernels/lorry_kernels/ops/sampling.py"
SWEEP = "kernels/lorry_kernels/tuning/sweep.py"
TABLE = "kernels/lorry_kernels/tuning/table.py"
GATED = "tests/kernels/test_aot_gate.py"
FLOWN = "tests/kernels/test_aot_flow.py"
TUNED = "tests/kernels/test_tuning.py"
BUILT = "tests/kernels/test_ops_builds.py"

GUARDS = (
    Guard(
        "stack_is_a_breach",
        GATE,
        "if found.stack_bytes:",
        "if found.stack_bytes > 64:",
        (f"{GATED}::test_each_rule_names_figure_limit_and_remedy",),
    ),
    Guard(
        "shared_memory_is_the_cards",
        GATE,
        "limit = SHARED_LIMIT[arch]",
        'limit = SHARED_LIMIT["sm_90"]',
        (f"{GATED}::test_shared_memory_is_limited_by_card",),
    ),
    Guard(
        "two_bytes_are_narrow",
        GATE,
        "narrow = sum(count for size, count in sizes.items() if size <= NARROW_BYTES)",
        "narrow = sum(count for size, count in sizes.items() if size < NARROW_BYTES)",
        (f"{GATED}::test_each_rule_names_figure_limit_and_remedy",),
    ),
    Guard(
        "a_weight_that_is_never_read_is_a_breach",
        GATE,
        "    elif not sizes:",
        "    elif sizes is None:",
        (f"{GATED}::test_each_rule_names_figure_limit_and_remedy",),
    ),
    Guard(
        "addresses_go_around_loops",
        FLOW,
        "                    changed = True",
        "                    changed = False",
        (f"{FLOWN}::test_an_address_carried_around_a_loop_keeps_its_argument",),
    ),
    Guard(
        "an_unknown_opcode_is_not_passed_over",
        PTX,
        "    if found is None:\n        raise ValueError(",
        "    if found is None:\n        return 16\n        raise ValueError(",
        (f"{FLOWN}::test_a_width_that_ptx_does_not_have_today_is_not_passed_over",),
    ),
    Guard(
        "a_hint_that_no_launch_gives_is_a_breach",
        COMPILE,
        "        _check(build, parameter)",
        "        pass",
        (f"{GATED}::test_every_fault_is_named_on_nvidia",),
    ),
    Guard(
        "a_kernel_in_no_build_is_a_breach",
        MAIN,
        "lost = () if options.op else catalogue.uncovered(modules, every)",
        "lost: tuple[str, ...] = ()",
        (f"{GATED}::test_every_fault_is_named_on_nvidia",),
    ),
    Guard(
        "a_breach_is_the_exit_status",
        MAIN,
        "return 1 if lost or any(row.breaches for row in rows) else 0",
        "return 0",
        (f"{GATED}::test_an_alignment_hint_taken_away_fails_the_gate",),
    ),
    Guard(
        "logits_are_built_as_float32",
        EXPAND,
        'y = "fp32" if wide else shape.dtype',
        "y = shape.dtype",
        (f"{BUILT}::test_what_is_launched_is_what_is_built[SmolLM2-135M-sm_90]",),
    ),
    Guard(
        "a_pages_stride_is_built_as_wide_as_it_is_launched",
        ROTARY,
        "page_row: tl.int64,",
        "page_row: tl.tensor,",
        (f"{BUILT}::test_what_is_launched_is_what_is_built[SmolLM2-135M-sm_90]",),
    ),
    Guard(
        "a_row_of_a_table_is_divisible_where_its_length_is",
        ROTARY,
        "if (shape.head_dim // 2) % 16:",
        "if shape.head_dim % 16:",
        (f"{BUILT}::test_what_is_launched_is_what_is_built[D80-G4-sm_90]",),
    ),
    Guard(
        "a_width_that_is_built_divisible_is_specialised",
        GAIN,
        "@triton.jit(do_not_specialize=_ANY)\ndef _take_gained(",
        '@triton.jit(do_not_specialize=[*_ANY, "features"])\ndef _take_gained(',
        (f"{BUILT}::test_what_is_launched_is_what_is_built[SmolLM2-135M-sm_90]",),
    ),
    Guard(
        "what_stands_for_an_absent_parameter_has_its_own_type",
        SAMPLING,
        '"plain": dict.fromkeys(_PARAMETERS, "*fp64")',
        '"plain": {}',
        (f"{BUILT}::test_what_is_launched_is_what_is_built[SmolLM2-135M-sm_90]",),
    ),
    Guard(
        "a_row_of_the_table_that_nobody_compiles_is_not_shipped",
        SHAPES,
        """    ModelShape.of_heads("D192-G12", 96, 8, 192, 64, window=4096),
    ModelShape.of_heads("D256-G2", 16, 8, 256, 16, window=4096, qk_norm=True),
""",
        "",
        (f"{BUILT}::test_every_row_of_the_tuning_table_is_in_a_build",),
    ),
    Guard(
        "a_candidate_that_gives_nan_is_wrong",
        SWEEP,
        "if not error <= 1:",
        "if error > 1:",
        (f"{TUNED}::test_the_fastest_right_one_wins_and_timings_go_around",),
    ),
    Guard(
        "medians_are_compared",
        SWEEP,
        "statistics.median(values)",
        "statistics.mean(values)",
        (f"{TUNED}::test_one_slow_timing_does_not_decide",),
    ),
    Guard(
        "a_trial_ends",
        TABLE,
        "        _trial.clear()\n",
        "        pass\n",
        (f"{TUNED}::test_a_trial_holds_within_it_alone",),
    ),
)

__all__ = ["GUARDS"]
