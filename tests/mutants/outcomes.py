"""Guards of what has no bill: every such request is counted, once, as its own tenant's."""

from __future__ import annotations

from tests.mutants.guard import Guard

USAGE = "platform/lorry/registry/usage"
GATEWAY = "platform/lorry/gateway"
OUTCOMES = "tests/unit/gateway/test_outcomes.py"
COUNTS = "tests/unit/registry/test_outcomes.py"
ENDS = "tests/integration/registry_gateway/test_outcomes.py"

GUARDS = (
    Guard(
        "what_has_a_bill_is_not_counted_too",
        f"{GATEWAY}/generations.py",
        "if caller is not None and (ended.call is None or not ended.call.billed):",
        "if caller is not None:",
        (f"{ENDS}::test_each_end_is_counted_once_under_its_reason_for_its_tenant[sqlite]",),
    ),
    Guard(
        "who_leaves_while_the_bill_is_written_has_one",
        f"{GATEWAY}/calls.py",
        "        call.billed = True  # who",
        "        pass  # who",
        (f"{ENDS}::test_who_leaves_while_the_bill_is_written_has_that_alone[sqlite]",),
    ),
    Guard(
        "a_bill_that_cannot_be_written_is_none",
        f"{GATEWAY}/calls.py",
        "            call.billed = False\n",
        "            pass\n",
        (f"{ENDS}::test_what_has_a_bill_is_not_counted_and_what_has_none_is[sqlite]",),
    ),
    Guard(
        "what_a_transport_refuses_is_counted",
        f"{GATEWAY}/generations.py",
        "self._hear(Ended(context, error.reason, began",
        "self.watch.tell(Ended(context, error.reason, began",
        (f"{ENDS}::test_what_http_refuses_is_counted_once[sqlite]",),
    ),
    Guard(
        "a_drain_writes_the_last_counts",
        f"{GATEWAY}/server.py",
        "        await self.outcomes.close()\n",
        "",
        (f"{ENDS}::test_a_drain_loses_none[sqlite]",),
    ),
    Guard(
        "counts_are_bounded",
        f"{GATEWAY}/outcomes.py",
        "if key not in self._counts and len(self._counts) >= self._keys:",
        "if False:",
        (f"{OUTCOMES}::test_adapters_beyond_the_bound_are_counted_without_their_id",),
    ),
    Guard(
        "hours_that_are_over_are_forgotten",
        f"{GATEWAY}/outcomes.py",
        "            del self._counts[key], self._written[key]\n",
        "            pass\n",
        (f"{OUTCOMES}::test_hours_that_are_over_are_forgotten_and_a_clock_set_back_loses_nothing",),
    ),
    Guard(
        "a_clock_that_is_set_back_loses_no_count",
        f"{GATEWAY}/outcomes.py",
        "key.hour < hour - 1 and",
        "key.hour < hour and",
        (f"{OUTCOMES}::test_hours_that_are_over_are_forgotten_and_a_clock_set_back_loses_nothing",),
    ),
    Guard(
        "processes_share_no_count",
        f"{GATEWAY}/outcomes.py",
        'f"gw_{uuid.uuid4().hex}"',
        '"gw"',
        (
            f"{OUTCOMES}::test_two_processes_never_share_a_count",
            f"{ENDS}::test_two_gateways_add_up[sqlite]",
        ),
    ),
    Guard(
        "an_older_count_changes_nothing",
        f"{USAGE}/outcomes_repository.py",
        "        where=OutcomeRollup.requests < step.excluded.requests,\n",
        "",
        (f"{COUNTS}::test_counts_of_several_writers_add_up_and_writing_again_changes_nothing[sqlite]",),
    ),
    Guard(
        "what_has_no_bill_is_its_tenants",
        f"{USAGE}/outcomes_repository.py",
        "        OutcomeRollup.tenant_id == tenant,\n",
        "",
        (f"{COUNTS}::test_a_tenant_reads_its_own[sqlite]",),
    ),
    Guard(
        "members_read_no_counts",
        f"{USAGE}/reports.py",
        '        require(caller, "read usage")\n        query = Query.of(start, end, dimensions, 1',
        "        query = Query.of(start, end, dimensions, 1",
        (f"{COUNTS}::test_a_tenant_reads_its_own[sqlite]",),
    ),
    Guard(
        "a_page_after_the_first_has_no_counts",
        "admin/lorry_admin/records.py",
        "[] if request.page_token else await reports.unbilled",
        "await reports.unbilled",
        ("tests/integration/admin/test_records.py::test_counts_without_a_bill_are_on_the_first_page_alone",),
    ),
    Guard(
        "the_overview_has_what_gave_no_token",
        "admin/lorry_admin/web/traffic.py",
        "        by_outcome[other.reason] += other.requests\n",
        "",
        ("tests/integration/web/test_figures.py::test_failures_of_clients_are_those_of_the_pages",),
    ),
    Guard(
        "bars_have_what_gave_no_token",
        "admin/lorry_admin/web/traffic.py",
        "            ends[_time(other.time)][other.reason] += other.requests\n",
        "            pass\n",
        ("tests/integration/web/test_figures.py::test_failures_of_clients_are_those_of_the_pages",),
    ),
)

__all__ = ["GUARDS"]
