"""Guards of kernels that may be placed while the one before still runs."""

from __future__ import annotations

from tests.mutants.guard import Guard

OPS = "kernels/lorry_kernels/ops"
TEST = "tests/kernels/test_dependent.py"
WAITS = f"{TEST}::test_it_waits_before_it_touches_memory"

GUARDS = (
    Guard("expand_waits_for_the_planes", f"{OPS}/expand.py", "        gdc_wait()\n", "        pass\n", (WAITS,)),
    Guard("shrink_waits_for_its_input", f"{OPS}/shrink.py", "        gdc_wait()\n", "", (WAITS,)),
    Guard(
        "the_gate_sees_who_does_not_wait",
        "kernels/lorry_kernels/aot/resources.py",
        "        if not build.launch.dependent:\n",
        "        if True:\n",
        ("tests/kernels/test_aot_gate.py::test_every_fault_is_named_on_nvidia",),
    ),
    Guard(
        "older_cards_wait_for_each_kernel",
        f"{OPS}/launch.py",
        "int(number) >= 90",
        "int(number) >= 80",
        (f"{TEST}::test_from_hopper_on",),
    ),
)
