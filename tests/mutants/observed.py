"""Guards of what gateways report of engines' copies: whose, how old and how many, and that none is told twice."""

from __future__ import annotations

from tests.mutants.guard import Guard

REPOSITORY = "platform/lorry/registry/fleet/repository.py"
OBSERVED = "platform/lorry/registry/fleet/observed.py"
TESTS = "tests/integration/admin/test_observed.py"
WHOSE = f"{TESTS}::test_equal_bytes_of_others_are_theirs[sqlite]"
CHANGED = f"{TESTS}::test_only_what_changed_is_written[sqlite]"
BOUNDED = f"{TESTS}::test_what_is_kept_of_an_engine_is_bounded[sqlite]"
GATEWAYS = "tests/integration/admin/test_two_gateways.py"

GUARDS = (
    Guard(
        "observed_copies_are_of_the_adapters_that_were_asked_for",
        REPOSITORY,
        ".where(*_told_since(after, besides), Residency.adapter_id.in_(adapter_ids))",
        ".where(*_told_since(after, besides))",
        (WHOSE,),
    ),
    Guard(
        "an_observed_copy_is_of_one_version",
        OBSERVED,
        " if one.adapter == adapter]",
        "]",
        (WHOSE,),
    ),
    Guard(
        "an_engine_of_this_gateway_is_not_told_as_others_saw_it",
        REPOSITORY,
        "told, ReplicaState.name.not_in(besides)",
        "told",
        (
            f"{TESTS}::test_an_engine_of_this_gateway_is_told_once_and_as_it_says_itself[sqlite]",
            f"{GATEWAYS}::test_either_gateway_tells_of_both_engines[sqlite]",
        ),
    ),
    Guard(
        "copies_are_as_old_as_they_were_told",
        REPOSITORY,
        "    told = ReplicaState.copies_seen_at >= after\n",
        "    told = ReplicaState.seen_at >= after\n",
        (f"{TESTS}::test_what_was_seen_long_ago_is_not_told[sqlite-old]",),
    ),
    Guard(
        "copies_of_an_engine_that_is_down_are_not_told",
        REPOSITORY,
        ' ReplicaState.state == "SERVING",',
        "",
        (f"{TESTS}::test_what_an_engine_had_that_is_down_is_not_told[sqlite]",),
    ),
    Guard(
        "copies_that_are_as_they_were_are_not_written",
        OBSERVED,
        " if before.get(adapter) != places}",
        "}",
        (CHANGED,),
    ),
    Guard(
        "copies_that_are_gone_are_forgotten",
        OBSERVED,
        " if adapter not in now or adapter in other]",
        " if adapter in other]",
        (CHANGED,),
    ),
    Guard(
        "copies_of_one_engine_are_bounded",
        OBSERVED,
        "    if len(copies) <= VERSIONS_KEPT:\n",
        "    if True:\n",
        (BOUNDED,),
    ),
    Guard(
        "copies_on_the_device_are_kept_first",
        OBSERVED,
        "    near = sorted(copies.items(), key=lambda one: tuple(not place for place in one[1]))\n",
        "    near = list(copies.items())\n",
        (BOUNDED,),
    ),
    Guard(
        "copies_are_reported_more_seldom_than_their_engine",
        "platform/lorry/cli/upkeep.py",
        "                copies = await _copies(engine) if due and not down else None\n",
        "                copies = await _copies(engine)\n",
        (f"{GATEWAYS}::test_copies_are_reported_now_and_then[sqlite]",),
    ),
    Guard(
        "an_engine_that_is_back_tells_at_once_what_it_has",
        "platform/lorry/cli/upkeep.py",
        "                    told_at.pop(engine, None)",
        "                    pass",
        (f"{GATEWAYS}::test_an_engine_that_died_is_told_by_no_gateway[sqlite]",),
    ),
    Guard(
        "a_base_that_others_serve_is_served",
        "admin/lorry_admin/lifecycle.py",
        " and not await self._observed.serving(BaseDigest(base), own):",
        ":",
        (f"{TESTS}::test_a_base_that_engines_elsewhere_serve[sqlite]",),
    ),
    Guard(
        "what_is_on_the_device_is_shown_first",
        "platform/lorry/engine/sights.py",
        "chain(rows, reversed(sight.host), reversed(sight.disk))",
        "chain(reversed(sight.disk), reversed(sight.host), rows)",
        ("tests/integration/admin/test_engine_memory.py::test_adapters_come_and_go_through_all_tiers",),
    ),
    Guard(
        "those_in_use_last_are_shown_first",
        "platform/lorry/engine/sights.py",
        "chain(rows, reversed(sight.host), reversed(sight.disk))",
        "chain(rows, sight.host, sight.disk)",
        ("tests/integration/admin/test_engine_memory.py::test_adapters_come_and_go_through_all_tiers",),
    ),
)

__all__ = ["GUARDS"]
