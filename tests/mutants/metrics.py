"""Guards of what is counted: metrics that are the ledger's figures, bounded, and never in the way."""

from __future__ import annotations

from tests.mutants.guard import Guard

METRICS = "platform/lorry/gateway/metrics"
BILLS = "tests/unit/gateway/metrics/test_billing.py"
TENANTS = "tests/unit/gateway/metrics/test_tenants.py"
SCRAPES = "tests/integration/gateway/test_metrics.py"
ENGINE = "tests/unit/engine/test_metrics.py"
FIGURES = f"{SCRAPES}::test_figures_are_the_clients_and_the_ledgers"

GUARDS = (
    Guard(
        "a_row_that_nobody_waits_for_is_counted",
        f"{METRICS}/billing.py",
        "            self._count(row)\n            raise\n",
        "            raise\n",
        (f"{BILLS}::test_a_row_whose_writing_nobody_waits_for_counts_and_its_second_does_not",),
    ),
    Guard(
        "the_second_row_of_a_request_is_not_counted",
        f"{METRICS}/billing.py",
        "if row.ledger_id in self._left:",
        "if False:",
        (f"{BILLS}::test_a_row_whose_writing_nobody_waits_for_counts_and_its_second_does_not",),
    ),
    Guard(
        "series_of_tenants_are_bounded",
        f"{METRICS}/tenants.py",
        "if tenant not in self._shown and len(self._shown) < self._most:",
        "if tenant not in self._shown:",
        (
            f"{TENANTS}::test_the_first_ones_have_places_and_the_rest_is_summed_up",
            f"{SCRAPES}::test_series_are_bounded_under_a_thousand_tenants",
        ),
    ),
    Guard(
        "a_tenant_that_comes_back_goes_on_where_it_stood",
        f"{METRICS}/tenants.py",
        "            self._own.setdefault(tenant, Bills())\n        self._recent.clear()",
        "            self._own[tenant] = Bills()\n        self._recent.clear()",
        (f"{TENANTS}::test_one_that_comes_back_goes_on_where_it_stood",),
    ),
    Guard(
        "a_tenant_that_is_called_other_is_not_the_rest",
        f"{METRICS}/of_gateway.py",
        "entry is None or entry.name == OTHER",
        "entry is None",
        (f"{SCRAPES}::test_series_are_bounded_under_a_thousand_tenants",),
    ),
    Guard(
        "a_dead_engine_is_no_fault_of_the_scrape",
        f"{METRICS}/of_engines.py",
        "    except (LorryError, TimeoutError):\n",
        "    except TimeoutError:\n",
        (f"{SCRAPES}::test_a_dead_engine_is_down_and_the_scrape_goes_on",),
    ),
    Guard(
        "a_broken_engine_does_not_fail_the_scrape",
        f"{METRICS}/of_engines.py",
        "    except Exception:  # one engine's",
        "    except MemoryError:  # one engine's",
        (f"{SCRAPES}::test_an_engine_that_does_not_answer_or_is_broken_is_down",),
    ),
    Guard(
        "a_page_is_written_on_a_thread",
        f"{METRICS}/pages.py",
        "return await asyncio.to_thread(write, found, accept, True)",
        "return write(found, accept, True)",
        (f"{SCRAPES}::test_the_loop_serves_while_a_scrape_is_written",),
    ),
    Guard(
        "one_question_answers_all_who_wait",
        f"{METRICS}/pages.py",
        "        if self._asking is None:\n",
        "        if True:\n",
        (f"{SCRAPES}::test_many_scrapes_at_once_are_one_question",),
    ),
    Guard(
        "a_scraper_that_leaves_does_not_end_the_question",
        f"{METRICS}/pages.py",
        "asyncio.shield(self._asking)",
        "self._asking",
        (f"{SCRAPES}::test_who_leaves_does_not_take_the_answer_of_others_along",),
    ),
    Guard(
        "names_of_adapters_are_listed_only_where_they_are_asked_for",
        f"{METRICS}/router.py",
        "    if most_adapters:\n",
        "    if True:\n",
        (f"{SCRAPES}::test_a_router_reads_load_and_names_only_where_they_are_asked_for",),
    ),
    Guard(
        "names_of_adapters_are_bounded",
        f"{METRICS}/router.py",
        "[: most - len(first)]",
        "",
        (f"{SCRAPES}::test_a_router_reads_load_and_names_only_where_they_are_asked_for",),
    ),
    Guard(
        "what_http_refuses_before_a_generation_is_counted",
        "platform/lorry/gateway/generations.py",
        "            self._counters.outcomes[error.reason] += 1\n            self._hear(",
        "            self._hear(",
        (FIGURES,),
    ),
    Guard(
        "keys_that_do_not_hold_are_counted",
        "platform/lorry/gateway/admission.py",
        "                self.counters.auth_failures += 1\n",
        "                pass\n",
        (FIGURES,),
    ),
    Guard(
        "what_computed_again_is_no_prompt_from_the_cache",
        "platform/lorry/engine/meter.py",
        "for one in plan.new if len(one.token_ids) == one.prompt_tokens)",
        "for one in plan.new)",
        (f"{ENGINE}::test_what_is_computed_again_after_a_preemption_counts_again",),
    ),
    Guard(
        "a_change_counts_as_late_as_it_may_have_been",
        "platform/lorry/registry/source.py",
        "self.lag.observe(self.age())\n",
        "self.lag.observe(0.0)\n",
        ("tests/unit/registry/test_source.py::test_how_long_changes_were_unknown_is_counted_for_each_poll_that_brought_some",),
    ),
)  # fmt: skip

__all__ = ["GUARDS"]
