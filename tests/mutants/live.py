"""Guards of what is live: that a reason is the true one, that figures are the engine's, and whose a row is."""

from __future__ import annotations

from tests.mutants.guard import Guard

LORRY = "platform/lorry"
LAST_PLAN = f"{LORRY}/scheduler/last_plan.py"
REASONS = "tests/unit/scheduler/test_wait_reasons.py"
LIVING = "tests/integration/web/test_living.py"
MEMORY = "tests/integration/admin/test_engine_memory.py"
DESK = "tests/unit/registry/test_desk.py"

GUARDS = (
    Guard(
        "a_reason_is_of_the_last_plan",
        LAST_PLAN,
        "            if mine and judged.judged == self.number and judged.reason is not None:\n",
        "            if mine and judged.reason is not None:\n",
        (f"{REASONS}::test_a_reason_is_of_the_last_plan_alone",),
    ),
    Guard(
        "a_lane_waits_for_what_its_first_waits_for",
        LAST_PLAN,
        "        for judged in (entry, head):",
        "        for judged in (entry,):",
        (f"{REASONS}::test_every_slot_is_others_and_so_for_all_of_the_lane",),
    ),
    Guard(
        "a_load_is_the_nearest_reason",
        LAST_PLAN,
        "        if adapter is not None and self._residency.state_of(adapter) not in here:\n",
        "        if False:\n",
        (f"{REASONS}::test_an_adapter_on_its_way_whatever_else_is_short",),
    ),
    Guard(
        "who_yields_to_one_that_starves_says_so",
        f"{LORRY}/scheduler/admission.py",
        "            return YIELDS_MEMORY\n",
        "            return NO_PAGES\n",
        (f"{REASONS}::test_what_another_starves_for_is_kept_for_it",),
    ),
    Guard(
        "cached_prefixes_are_not_in_use",
        f"{LORRY}/engine/sights.py",
        '        "used": pages["used"] - unused,\n',
        '        "used": pages["used"],\n',
        (f"{MEMORY}::test_adapters_come_and_go_through_all_tiers",),
    ),
    Guard(
        "a_tenant_is_told_of_the_copies_of_its_own_adapters",
        f"{LORRY}/engine/sights.py",
        " if one.scope in wanted]",
        "]",
        (f"{MEMORY}::test_adapters_come_and_go_through_all_tiers",),
    ),
    Guard(
        "a_tenant_reads_its_own_recent_requests",
        "admin/lorry_admin/records.py",
        '            tenant = (await self._registry.tenants.get(caller, parse_tenant("parent", request.parent))).id\n',
        '            await self._registry.tenants.get(caller, parse_tenant("parent", request.parent))\n',
        (f"{LIVING}::test_failed_and_slow_requests_and_whose_they_are",),
    ),
    Guard(
        "recent_requests_of_all_are_the_platforms",
        "admin/lorry_admin/records.py",
        '            require(caller, "list all recent requests")\n',
        "            pass\n",
        (f"{LIVING}::test_failed_and_slow_requests_and_whose_they_are",),
    ),
    Guard(
        "what_a_client_cancelled_has_not_failed",
        f"{LORRY}/registry/fleet/desk.py",
        "        if ended.outcome not in (OK, CANCELLED):\n",
        "        if ended.outcome != OK:\n",
        (f"{DESK}::test_what_a_client_cancelled_is_slow_and_not_failed",),
    ),
    Guard(
        "a_boards_stream_is_its_own_pages",
        "admin/lorry_admin/web/pages/living.py",
        "Scripted = Annotated[Visit, Depends(get_script)]\n",
        "from lorry_admin.web.visits import get_visit\n\nScripted = Annotated[Visit, Depends(get_visit)]\n",
        (f"{LIVING}::test_boards_follow[queue]",),
    ),
)

__all__ = ["GUARDS"]
