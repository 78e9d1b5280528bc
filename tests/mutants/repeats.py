"""Guards of requests that are sent again, and of what a poll and a page cost."""

from __future__ import annotations

from tests.mutants.guard import Guard

REGISTRY = "platform/lorry/registry"
REPEATS = "tests/integration/admin/test_request_ids.py"
MODELS = "tests/unit/gateway/test_models.py"

GUARDS = (
    Guard(
        "a_move_is_remembered",
        f"{REGISTRY}/aliases/service.py",
        "            remember(session, key, str(row.revision))\n",
        "",
        (f"{REPEATS}::test_a_repeated_move_is_answered_as_it_was_after_later_ones[sqlite]",),
    ),
    Guard(
        "a_repeat_waits_for_the_first_try",
        f"{REGISTRY}/idempotency.py",
        "    await _lock(session, key)\n",
        "",
        ("tests/unit/registry/test_races.py::test_fifty_equal_requests_are_one[postgresql]",),
    ),
    Guard(
        "uploads_of_tenants_do_not_meet",
        f"{REGISTRY}/adapters/versions.py",
        "(key.tenant, key.method, request_id)",
        "(key.method, request_id)",
        (f"{REPEATS}::test_request_ids_of_tenants_do_not_meet[sqlite]",),
    ),
    Guard(
        "names_are_of_these_grants",
        "platform/lorry/gateway/models.py",
        "kept[0] is grants",
        "True",
        (f"{MODELS}::test_changes_are_seen_at_once",),
    ),
    Guard(
        "names_are_kept_when_all_are_known",
        "platform/lorry/gateway/models.py",
        "        if len(named) == len(granted):",
        "        if True:",
        (f"{MODELS}::test_a_grant_on_what_is_not_known_yet_is_listed_when_it_is",),
    ),
    Guard(
        "a_full_load_lets_the_loop_turn",
        f"{REGISTRY}/source.py",
        "            self._database.turn()\n",
        "",
        ("tests/unit/registry/test_source.py::test_the_event_loop_turns_after_each_part_of_a_full_load[postgresql]",),
    ),
)

__all__ = ["GUARDS"]
