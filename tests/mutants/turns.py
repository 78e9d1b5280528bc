"""Guards of turns by weight: what is no credit and no debt, that shares are spread, and who may set them."""

from __future__ import annotations

from tests.mutants.guard import Guard

TURNS = "platform/lorry/scheduler/turns.py"
TESTS = "tests/unit/scheduler/test_turns.py"
SERVICE = "platform/lorry/registry/tenants/service.py"
RIGHTS = "tests/integration/admin/test_rights.py"

GUARDS = (
    Guard(
        "who_was_passed_over_has_no_credit",
        TURNS,
        "        at = self._global + stride\n",
        "        at = self._rows[tenant][0] + stride\n",
        (f"{TESTS}::test_who_was_passed_over_and_can_run_again_has_its_turns_and_no_more",),
    ),
    Guard(
        "who_comes_is_a_stride_behind",
        TURNS,
        "        at = self._global + _STRIDE // weight\n",
        "        at = self._global\n",
        (f"{TESTS}::test_leaving_pays_no_debt",),
    ),
    Guard(
        "who_comes_is_behind_its_equals",
        TURNS,
        "        self._put(tenant, weight, at if peers is None else max(at, peers.last))\n",
        "        self._put(tenant, weight, at)\n",
        (f"{TESTS}::test_who_comes_is_behind_its_equals",),
    ),
    Guard(
        "light_tenants_get_apart",
        TURNS,
        "        if peers.count > 1:\n",
        "        if False:\n",
        (f"{TESTS}::test_turns_are_spread_and_not_in_a_row",),
    ),
    Guard(
        "a_turn_is_not_put_off_without_end",
        TURNS,
        "min(peers.last + stride // peers.count, self._global + 2 * stride)",
        "peers.last + stride // peers.count",
        (f"{TESTS}::test_a_turn_is_put_off_by_two_strides_at_most",),
    ),
    Guard(
        "a_tenant_is_put_back_by_its_weight_within_a_plan",
        TURNS,
        "        turns.insert(next(places, len(turns)), tenant)\n",
        "        turns.append(tenant)\n",
        (f"{TESTS}::test_three_to_one_in_the_scheduler_with_a_plan_for_each_and_with_one_for_many",),
    ),
    Guard(
        "the_newest_request_says_the_weight",
        TURNS,
        "        live.weight = weight\n",
        "",
        (f"{TESTS}::test_the_newest_live_request_says_the_weight",),
    ),
    Guard(
        "a_new_weight_holds_for_what_waits",
        TURNS,
        "            self._reweigh(tenant, weight)\n",
        "            pass\n",
        (f"{TESTS}::test_the_newest_live_request_says_the_weight",),
    ),
    Guard(
        "an_engine_refuses_other_weights",
        "platform/lorry/scheduler/checks.py",
        "    if not 1 <= request.weight <= WEIGHT_MAX:\n",
        "    if False:\n",
        (f"{TESTS}::test_other_weights_are_refused",),
    ),
    Guard(
        "no_weight_on_the_wire_is_one",
        "platform/lorry/engine/transport_codec.py",
        "        message.weight or 1,\n",
        "        message.weight,\n",
        ("tests/unit/engine_contract/test_codec.py::test_a_gateway_that_states_no_weight_states_one",),
    ),
    Guard(
        "a_requests_weight_is_the_snapshots",
        "platform/lorry/gateway/admission.py",
        "            weight=snapshot.weight_of(caller.tenant),\n",
        "",
        ("tests/integration/gateway/test_choices.py::test_a_tenants_weight_is_the_snapshots",),
    ),
    Guard(
        "weights_have_bounds",
        SERVICE,
        "    if not 1 <= weight <= WEIGHT_MAX:\n",
        "    if False:\n",
        (f"{RIGHTS}::test_weights[sqlite]",),
    ),
)

__all__ = ["GUARDS"]
