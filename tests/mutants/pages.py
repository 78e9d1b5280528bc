"""Guards of what pages are told: own rows alone, sums that are the ledger's, one registry behind many processes."""

from __future__ import annotations

from tests.mutants.guard import Guard

REGISTRY = "platform/lorry/registry"
SUMMARIES_TEST = "tests/integration/admin/test_summaries.py"
PROCESSES_TEST = "tests/integration/web/test_processes.py"

GUARDS = (
    Guard(
        "a_summarys_last_use_is_its_own_tenants",
        f"{REGISTRY}/adapters/summaries.py",
        "        .where(UsageRollup.tenant_id == tenant, UsageRollup.model == model)\n",
        "        .where(UsageRollup.model == model)\n",
        (f"{SUMMARIES_TEST}::test_the_full_view[sqlite]",),
    ),
    Guard(
        "a_summary_has_no_deleted_alias",
        f"{REGISTRY}/adapters/summaries.py",
        "        .where(Adapter.id.in_(ids), Adapter.tenant_id == tenant, AliasRevision.deleted.is_(False))\n",
        "        .where(Adapter.id.in_(ids), Adapter.tenant_id == tenant)\n",
        (f"{SUMMARIES_TEST}::test_the_full_view[sqlite]",),
    ),
    Guard(
        "a_summarys_aliases_are_bounded",
        f"{REGISTRY}/adapters/summaries.py",
        ".where(ranked.c.place <= ALIASES_SHOWN)\n",
        "\n",
        (f"{SUMMARIES_TEST}::test_the_full_view[sqlite]",),
    ),
    Guard(
        "usage_of_one_model_is_of_that_alone",
        f"{REGISTRY}/usage/sums_repository.py",
        "        chosen = chosen.where(UsageRollup.model == query.model)\n",
        "        pass\n",
        (f"{SUMMARIES_TEST}::test_usage_of_one_model[sqlite]",),
    ),
    Guard(
        "minutes_are_ones_own",
        f"{REGISTRY}/usage/minutes_repository.py",
        "        UsageEvent.tenant_id == tenant, UsageEvent.ended_at >= query.start, UsageEvent.ended_at < query.end\n",
        "        UsageEvent.ended_at >= query.start, UsageEvent.ended_at < query.end\n",
        (f"{SUMMARIES_TEST}::test_usage_by_the_minute_is_the_usage_by_the_hour[sqlite]",),
    ),
    Guard(
        "minutes_are_of_a_short_while",
        f"{REGISTRY}/usage/queries.py",
        "    if last - first > MINUTES_MAX:\n",
        "    if False:\n",
        (f"{SUMMARIES_TEST}::test_usage_by_the_minute_is_the_usage_by_the_hour[sqlite]",),
    ),
    Guard(
        "refusals_of_streams_are_counted",
        "platform/lorry/gateway/refusals.py",
        "                    async for message in stream:\n"
        "                        yield message\n"
        "            except REFUSALS as error:\n"
        "                self._counters.admin_refusals[service, error.reason] += 1\n"
        "                raise\n",
        "                    async for message in stream:\n"
        "                        yield message\n"
        "            except REFUSALS:\n"
        "                raise\n",
        ("tests/integration/web/test_refusals_counted.py::test_refusals_are_counted_by_service_and_reason",),
    ),
    Guard(
        "an_ended_session_is_ended_for_every_process",
        f"{REGISTRY}/accounts/service.py",
        "        live = row.ended_at is None and time < row.expires_at and time - row.seen_at < IDLE\n",
        "        live = time < row.expires_at and time - row.seen_at < IDLE\n",
        (f"{PROCESSES_TEST}::test_what_is_ended_at_one_is_refused_at_the_other[sqlite]",),
    ),
    Guard(
        "guesses_are_counted_where_all_see_them",
        f"{REGISTRY}/accounts/service.py",
        "counts = {subject: counts[subject].attempted(rule, now) for subject, rule in subjects.items()}\n",
        "counts = dict(counts)\n",
        (f"{PROCESSES_TEST}::test_guesses_at_both_are_counted_together[sqlite]",),
    ),
)

__all__ = ["GUARDS"]
