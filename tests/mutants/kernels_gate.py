"""Guards of the ahead-of-time gate and of the tuning table: what would let bad code, or a wrong kernel, through."""

from __future__ import annotations

from tests.mutants.guard import Guard

GATE = "kernels/lorry_kernels/aot/gate.py"
FLOW = "kernels/lorry_kernels/aot/flow.py"
PTX = "kernels/lorry_kernels/aot/ptx.py"
COMPILE = "kernels/lorry_kernels/aot/compile.py"
MAIN = "kernels/lorry_kernels/aot/__main__.py"
SWEEP = "kernels/lorry_kernels/tuning/sweep.py"
TABLE = "kernels/lorry_kernels/tuning/table.py"
GATED = "tests/kernels/test_aot_gate.py"
FLOWN = "tests/kernels/test_aot_flow.py"
TUNED = "tests/kernels/test_tuning.py"

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
