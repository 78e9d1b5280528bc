"""Guards of quotas: nothing passes beyond a limit, a refusal takes nothing, what was taken comes back, once."""

from __future__ import annotations

from tests.mutants.guard import Guard

LIMITS = "platform/lorry/gateway/limits"
GATE = f"{LIMITS}/gate.py"
SEATS = f"{LIMITS}/seats.py"
TOKENS = f"{LIMITS}/tokens.py"
UPKEEP = f"{LIMITS}/upkeep.py"
CALLS = "platform/lorry/gateway/calls.py"
SIZES = "platform/lorry/gateway/sizes.py"
LEASES = "platform/lorry/registry/leases/service.py"
LEASE_SQL = "platform/lorry/registry/leases/repository.py"
QUOTAS = "platform/lorry/registry/limits/service.py"
LEDGER = "platform/lorry/registry/usage/service.py"

UNIT = "tests/unit/gateway/limits"
GATE_TESTS = f"{UNIT}/test_gate.py"
SEAT_TESTS = f"{UNIT}/test_seats.py"
TOKEN_TESTS = f"{UNIT}/test_tokens.py"
LEASE_TESTS = "tests/unit/registry/test_leases.py"
QUOTA_TESTS = "tests/unit/registry/test_quotas.py"
WIRE = "tests/integration/gateway/test_limits.py"
BUDGET = "tests/integration/registry_gateway/test_budget.py"

GUARDS = (
    Guard(
        "no_more_begin_than_a_minute_has",
        GATE,
        "            quota.check_rate(now)\n            quota.check_seats()\n        hold.begin()\n",
        "            quota.check_seats()\n        hold.begin()\n",
        (f"{GATE_TESTS}::test_requests_a_minute_with_the_buckets_own_time",),
    ),
    Guard(
        "a_refusal_gives_the_rate_back",
        GATE,
        "        for bucket in self._buckets:\n            bucket.give_back()\n",
        "",
        (f"{GATE_TESTS}::test_a_wait_counts_in_the_requests_own_times",),
    ),
    Guard(
        "a_refusal_gives_everything_back",
        GATE,
        "        except BaseException:  # a cancelled caller too gives everything back\n"
        "            hold.refuse()\n            raise\n",
        "        finally:\n            pass\n",
        (f"{GATE_TESTS}::test_who_is_seated_too_late_is_told_so",),
    ),
    Guard(
        "the_adapters_quota_holds_too",
        GATE,
        '        keys = ("", adapter_id) if adapter_id else ("",)\n',
        '        keys = ("",)\n',
        (f"{WIRE}::test_an_adapters_limits_are_of_that_adapter",),
    ),
    Guard(
        "seats_of_all_quotas_or_none",
        SEATS,
        "        if not all(one.free() for one in seats):\n            return False\n",
        "        if not any(one.free() for one in seats):\n            return False\n",
        (f"{SEAT_TESTS}::test_who_waits_for_both_is_seated_whichever_comes_last", f"{SEAT_TESTS}::TestCrowd"),
    ),
    Guard(
        "who_leaves_as_it_is_seated_keeps_no_seat",
        SEATS,
        "                self.leave(seats)  # it was seated in the same moment\n",
        "                pass\n",
        (f"{SEAT_TESTS}::test_a_seat_that_comes_as_its_waiter_leaves_goes_to_the_next",),
    ),
    Guard(
        "who_gives_up_frees_its_place",
        SEATS,
        "            else:\n                _strike(waiter)\n            raise\n",
        "            raise\n",
        (f"{SEAT_TESTS}::test_who_gives_up_frees_its_place",),
    ),
    Guard(
        "those_that_wait_learn_of_raised_limits",
        GATE,
        "            self._keep_budget(quota)\n            self._keeper.look([quota.seats])\n\n    def tidy",
        "            self._keep_budget(quota)\n\n    def tidy",
        (f"{GATE_TESTS}::test_those_that_wait_follow_the_limits",),
    ),
    Guard(
        "what_was_taken_back_meanwhile_runs_nowhere",
        CALLS,
        "            call.check()  # it may have waited for its quota\n",
        "",
        (f"{WIRE}::test_what_is_taken_back_while_a_request_waits_is_not_asked_of_an_engine",),
    ),
    Guard(
        "a_cap_of_a_quota_holds",
        SIZES,
        "        if self.quota is not None and self.quota // fields.n < asked:\n",
        "        if self.quota is not None and self.quota < 0:\n",
        (f"{WIRE}::test_a_cap_is_the_smaller_of_both_and_the_answer_says_so",),
    ),
    Guard(
        "a_lease_grants_no_more_than_it_has",
        TOKENS,
        "        if lease.left(now) < tokens:\n            return None\n",
        "        if lease.left(now) <= 0:\n            return None\n",
        (f"{TOKEN_TESTS}::test_those_that_wait_are_served_in_turn_by_one_round_trip[sqlite]",),
    ),
    Guard(
        "a_lease_ends_for_its_gateway_first",
        TOKENS,
        "        return self.granted - self.committed if now < self.until else 0\n",
        "        return self.granted - self.committed\n",
        (f"{TOKEN_TESTS}::test_without_the_registry_a_lease_is_used_until_it_ends[sqlite-before]",),
    ),
    Guard(
        "what_is_given_back_is_not_used_meanwhile",
        TOKENS,
        "        lease.granted = kept = committed + (0 if have < least else min(have, more))\n",
        "        kept = committed + (0 if have < least else min(have, more))\n",
        (f"{TOKEN_TESTS}::test_what_is_given_back_is_not_used_while_the_registry_is_told[sqlite]",),
    ),
    Guard(
        "no_halves_of_what_one_request_needs",
        TOKENS,
        "        lease.granted = kept = committed + (0 if have < least else min(have, more))\n",
        "        lease.granted = kept = committed + min(have, more)\n",
        (f"{TOKEN_TESTS}::test_two_gateways_do_not_keep_halves_of_what_one_request_needs[sqlite]",),
    ),
    Guard(
        "who_leaves_with_its_tokens_gives_them_back",
        UPKEEP,
        "                undo(waiter.budgets, made)\n",
        "                pass\n",
        (f"{TOKEN_TESTS}::test_who_leaves_while_it_waits_leaves_nothing[sqlite]",),
    ),
    Guard(
        "bills_are_charged_to_the_lease_they_stood_on",
        CALLS,
        "            charges=call.hold.charges,\n",
        "",
        (f"{BUDGET}::test_two_gateways_never_use_more_than_a_month_has[sqlite]",),
    ),
    Guard(
        "a_bill_uses_tokens_up",
        CALLS,
        "        call.hold.billed(admitted.answer.prompt_tokens + output_tokens)\n",
        "",
        (f"{BUDGET}::test_however_a_request_ends_its_tokens_are_those_of_its_bill[sqlite-well]",),
    ),
    Guard(
        "a_lease_is_granted_what_others_do_not_hold",
        LEASES,
        "    others = sum(max(lease.granted, lease.spent) for lease in leases.values() if lease is not mine)\n",
        "    others = sum(lease.spent for lease in leases.values() if lease is not mine)\n",
        (f"{LEASE_TESTS}::test_what_is_granted_is_what_is_free[sqlite]",),
    ),
    Guard(
        "a_lease_that_is_over_is_not_made_again",
        LEASES,
        "    if mine is None and not ask.fresh:\n",
        "    if mine is None and ask.wanted < 0:\n",
        (f"{LEASE_TESTS}::test_a_dead_gateways_lease_comes_back_but_for_what_it_spent[sqlite]",),
    ),
    Guard(
        "what_the_ledger_lacks_is_kept_when_a_lease_is_settled",
        LEASES,
        "                if tokens is not None and lease.spent >= tokens:\n",
        "                if tokens is not None:\n",
        (f"{LEASE_TESTS}::test_what_the_ledger_lacks_yet_is_kept_when_a_lease_is_settled[sqlite]",),
    ),
    Guard(
        "takers_of_one_quota_wait_for_each_other",
        LEASE_SQL,
        ".order_by(Quota.id).with_for_update()\n",
        ".order_by(Quota.id)\n",
        (f"{LEASE_TESTS}::test_takers_at_once_share_what_is_there[postgresql]",),
    ),
    Guard(
        "a_late_bill_is_charged_to_its_month",
        LEASE_SQL,
        "        if (await session.execute(step)).first() is None:\n",
        "        if (await session.execute(step)).first() is None and not tokens:\n",
        (f"{LEASE_TESTS}::test_a_dead_gateways_lease_comes_back_but_for_what_it_spent[sqlite]",),
    ),
    Guard(
        "clocks_may_differ",
        LEASE_SQL,
        "    return lease.expires_at + timedelta(seconds=CLOCKS_S) <= ",
        "    return lease.expires_at + timedelta(seconds=0.0 * CLOCKS_S) <= ",
        (f"{LEASE_TESTS}::test_a_dead_gateways_lease_comes_back_but_for_what_it_spent[sqlite]",),
    ),
    Guard(
        "only_new_rows_are_charged",
        LEDGER,
        "            for row in made:\n                for charge in row.charges:\n",
        "            for row in rows:\n                for charge in row.charges:\n",
        (f"{LEASE_TESTS}::test_a_bill_moves_from_the_lease_to_what_is_used[sqlite]",),
    ),
    Guard(
        "a_month_begins_with_the_ledgers_rows",
        LEASE_SQL,
        "        found[quota_id, month] = spent = await _in_ledger(session, quotas[quota_id], month)\n",
        "        found[quota_id, month] = spent = 0\n",
        (f"{LEASE_TESTS}::test_a_month_begins_with_what_the_ledger_has_of_it[sqlite]",),
    ),
    Guard(
        "quotas_are_set_by_administrators",
        QUOTAS,
        '        require(caller, "set quotas")\n',
        "",
        (f"{QUOTA_TESTS}::test_who_may[sqlite]",),
    ),
    Guard(
        "a_quota_of_an_adapter_needs_its_grant",
        QUOTAS,
        "    if found is None or granted is None or found.deleted_at is not None:\n",
        "    if found is None or found.deleted_at is not None:\n",
        (f"{QUOTA_TESTS}::test_an_adapter_needs_a_grant[sqlite]",),
    ),
    Guard(
        "a_stale_etag_sets_no_quota",
        QUOTAS,
        "            check_etag(etag, None if row is None else quota_etag(row))\n",
        "",
        (f"{QUOTA_TESTS}::test_one_of_many_changes_at_once_wins_by_etag[sqlite]",),
    ),
)

__all__ = ["GUARDS"]
