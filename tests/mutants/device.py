"""Guards of what is computed: the maths of every kind, in mixed batches; and of what lies on the device."""

from __future__ import annotations

from tests.mutants.guard import Guard

ADAPTED = "platform/lorry/layers/adapted.py"
EXTRAS = "platform/lorry/adapters/image/extras.py"
DECODER = "platform/lorry/models/decoder.py"
RUNNER = "platform/lorry/engine/runner.py"
PLAN_RUNNER = "platform/lorry/engine/plan_runner.py"
ARENA = "platform/lorry/engine/arena.py"
TEST_ADAPTED = "tests/unit/layers/test_adapted.py"
TEST_EXTRAS = "tests/unit/engine/test_arena.py::test_extras_are_read_again_and_the_large_ones_by_the_audit"
PROBED = "tests/unit/adapters/test_probe.py::test_it_passes_for_every_kind_at_once"
OWN_ROWS = "tests/unit/models/test_own_rows.py"
FOREIGN_SLOT = "tests/unit/engine/test_foreign_slot.py::test_a_slot_that_is_not_the_planned_fill_runs_nothing"
SCHEDULER = "platform/lorry/scheduler/scheduler.py"
ENDINGS = "tests/unit/scheduler/test_endings.py"
OVERLAP = "tests/unit/engine/test_overlap.py"

GUARDS = (
    # Kind 10: LoRA reads x as it is, whatever the base's linear does to it.
    Guard(
        "lora_reads_x_without_a_gain",
        ADAPTED,
        "        x = x.clone()  # LoRA of other rows, and whoever made x, have it as it was\n",
        "",
        (f"{TEST_ADAPTED}::test_an_input_gain_where_the_site_has_one_slice",),
    ),
    Guard(
        "lora_of_the_head_reads_x_without_a_gain",
        ADAPTED,
        "        logits.addmm_(x @ extras.a.T, extras.b)\n",
        "        logits.addmm_(scaled @ extras.a.T, extras.b)\n",
        (f"{TEST_ADAPTED}::test_head_rows",),
    ),
    # DoRA: y = b + g (x W + s B A x). IA3's gain multiplies the bias too.
    Guard(
        "base_bias_outside_the_gain",
        ADAPTED,
        "            y = _product(method, x, found, self._widths[site])\n",
        "            y = _product(method, x, found, self._widths[site])\n"
        "            if method.bias is not None:\n"
        "                y += method.bias\n"
        "                method = PlainLinear(method._weight)\n",
        (f"{TEST_ADAPTED}::test_a_linear_with_rows_of_every_kind",),
    ),
    Guard(
        "the_delta_is_inside_the_gain",
        ADAPTED,
        "            delta(y)\n            for own, vectors in found:\n"
        "                if vectors.gain is not None:\n                    y[own] *= vectors.gain\n",
        "            for own, vectors in found:\n"
        "                if vectors.gain is not None:\n                    y[own] *= vectors.gain\n"
        "            delta(y)\n",
        (f"{TEST_ADAPTED}::test_a_linear_with_rows_of_every_kind",),
    ),
    Guard(
        "gains_of_ia3_are_over_the_bias",
        EXTRAS,
        "            addend = bias * (gain - 1)\n",
        "            addend = None\n",
        (PROBED,),
    ),
    Guard(
        "gains_of_dora_are_of_the_whole_weight",
        "platform/lorry/adapters/image/gains.py",
        "    norms = (torch.cat(squares) + scale * scale * quadratic).clamp_min(0).sqrt()\n",
        "    norms = torch.cat(squares).clamp_min(0).sqrt()\n",
        (f"{TEST_ADAPTED}::test_gains_are_magnitude_over_the_norm_of_the_whole_weight",),
    ),
    Guard(
        "input_gains_are_of_their_slice",
        ADAPTED,
        "                y[own, columns] = method.product(x[own] * slice_gain)[:, columns]\n",
        "                y[own] = method.product(x[own] * slice_gain)\n",
        (f"{TEST_ADAPTED}::test_a_linear_with_rows_of_every_kind",),
    ),
    # Embedding and head.
    Guard(
        "the_embedding_is_replaced",
        ADAPTED,
        "    if extras.weight is not None:\n        hidden.copy_(F.embedding(ids, extras.weight))\n",
        "",
        (f"{TEST_ADAPTED}::test_embedding_rows",),
    ),
    Guard(
        "ids_beyond_the_base_s_are_not_looked_up_there",
        ADAPTED,
        "ids.clamp(max=weight.shape[0] - 1)",
        "ids",
        (f"{TEST_ADAPTED}::test_embedding_rows",),
    ),
    Guard(
        "head_rows_are_replaced_before_lora",
        ADAPTED,
        "    if extras.rows is not None and extras.token_ids is not None:\n"
        "        logits.index_copy_(1, extras.token_ids, scaled @ extras.rows.T)\n"
        "    if extras.a is not None and extras.b is not None:\n"
        "        logits.addmm_(x @ extras.a.T, extras.b)\n",
        "    if extras.a is not None and extras.b is not None:\n"
        "        logits.addmm_(x @ extras.a.T, extras.b)\n"
        "    if extras.rows is not None and extras.token_ids is not None:\n"
        "        logits.index_copy_(1, extras.token_ids, scaled @ extras.rows.T)\n",
        (f"{TEST_ADAPTED}::test_head_rows",),
    ),
    Guard(
        "an_own_head_is_its_rows_alone",
        DECODER,
        "            logits[rows] = part\n",
        "            logits[:] = part[0]\n",
        (f"{OWN_ROWS}::test_heads_are_of_their_rows",),
    ),
    # Norms by row.
    Guard(
        "norms_are_of_their_rows",
        DECODER,
        "            normed[rows] = F.rms_norm(hidden[rows], size, own, eps)\n",
        "            normed = F.rms_norm(hidden, size, own, eps)\n",
        (f"{OWN_ROWS}::test_final_norms_are_of_their_rows",),
    ),
    Guard(
        "norms_of_heads_are_of_their_rows",
        DECODER,
        "                scaled[rows, own_heads] = normed[rows, own_heads] * weight\n",
        "                scaled[:, own_heads] = normed[:, own_heads] * weight\n",
        (f"{OWN_ROWS}::test_norms_of_heads_are_of_their_rows",),
    ),
    # Logits of one vocabulary at a time.
    Guard(
        "rows_are_grouped_by_vocabulary",
        RUNNER,
        "            by_vocabulary.setdefault(own.vocabulary if own else None, []).append((row, step, own))\n",
        "            by_vocabulary.setdefault(None, []).append((row, step, own))\n",
        ("tests/unit/engine/test_own_text.py::test_each_in_its_own_words_in_one_batch",),
    ),
    # Kind 5: no slot, another fill or another adapter is not answered with the base, nor with what lies there.
    Guard(
        "an_empty_slot_runs_nothing",
        PLAN_RUNNER,
        "            if entry is None or entry.generation",
        "            if entry is None:\n                return True\n            if entry.generation",
        (FOREIGN_SLOT,),
    ),
    Guard(
        "another_generation_runs_nothing",
        PLAN_RUNNER,
        " or entry.generation != step.generation",
        "",
        (FOREIGN_SLOT,),
    ),
    Guard(
        "another_digest_runs_nothing",
        PLAN_RUNNER,
        " or entry.adapter != step.adapter:\n",
        ":\n",
        (FOREIGN_SLOT,),
    ),
    Guard(
        "an_id_without_a_row_runs_nothing",
        PLAN_RUNNER,
        "        return self._sequences[step.sequence].largest_id < vocabulary\n",
        "        return True\n",
        ("tests/unit/engine/test_foreign_slot.py::test_an_id_without_a_row_ends_its_sequence_alone",),
    ),
    Guard(
        "an_answer_is_of_the_adapter_that_was_asked_for",
        "platform/lorry/engine/choices.py",
        "    if stated and update.adapter != call.adapter:\n",
        "    if False:\n",
        (
            "tests/unit/engine/test_calls.py"
            "::test_a_choice_that_ran_on_other_weights_ends_the_call_and_none_of_its_tokens_leave",
        ),
    ),
    # Kind 11: what one adapter lost is not another's fault.
    Guard(
        "a_text_side_that_is_gone_ends_its_call_alone",
        "platform/lorry/engine/choices.py",
        "            except LorryError as error:  # the host tier lost it",
        "            except ZeroDivisionError as error:  # the host tier lost it",
        ("tests/unit/engine/test_named_text.py::test_a_text_side_that_is_no_longer_there_ends_its_call_alone",),
    ),
    # Bytes on the device.
    Guard(
        "extras_are_compared_when_they_are_loaded",
        ARENA,
        " or extra_sums(image.extras) != image.extra_sums:\n",
        ":\n",
        (TEST_EXTRAS,),
    ),
    Guard(
        "rank_rows_are_compared_when_they_are_loaded",
        ARENA,
        "        if sums != image.sums or ",
        "        if ",
        ("tests/unit/engine/test_slot_integrity.py::test_a_damaged_host_image_fails_one_load_and_is_brought_anew",),
    ),
    Guard(
        "extras_are_compared_again",
        ARENA,
        "        return all(\n            found == want\n",
        "        return all(\n            True\n",
        (TEST_EXTRAS,),
    ),
    Guard(
        "the_audit_reads_large_extras_too",
        "platform/lorry/engine/slot_table.py",
        "        if not self._intact(entry, whole=True):\n",
        "        if not self._intact(entry, whole=False):\n",
        (TEST_EXTRAS,),
    ),
    Guard(
        "slots_are_read_again_when_a_sequence_starts",
        PLAN_RUNNER,
        "        self._verify_starting(plan)\n",
        "",
        (
            "tests/unit/engine/test_slot_integrity.py"
            "::test_a_swap_before_a_request_yields_no_token_and_is_healed_by_a_reload",
        ),
    ),
    # Kind 11: one that is bad ends alone.
    Guard(
        "a_load_that_fails_fails_alone",
        PLAN_RUNNER,
        "                failed.append((load.slot, error.message))\n",
        "                raise\n",
        ("tests/unit/engine/test_slot_integrity.py::test_a_damaged_host_image_fails_one_load_and_is_brought_anew",),
    ),
    Guard(
        "a_row_that_is_not_finite_draws_nothing",
        "platform/lorry/engine/sampler.py",
        " if finite[i] else None for i, step in enumerate(steps)}",
        " for i, step in enumerate(steps)}",
        ("tests/unit/engine/test_runner_output.py::test_a_row_that_is_not_finite_ends_its_sequence_without_logprobs",),
    ),
    Guard(
        "a_scored_row_that_is_not_finite_is_not_stated",
        "platform/lorry/engine/sampler.py",
        "        if not all(bool(torch.isfinite(edge)) for edge in torch.aminmax(logits)):\n",
        "        if False:\n",
        ("tests/unit/engine/test_runner_output.py::test_a_row_that_is_not_finite_ends_its_sequence_without_logprobs",),
    ),
    Guard(
        "a_load_that_failed_is_no_damage_of_the_next",
        SCHEDULER,
        "for row in rows if not self._never_filled(row, damaged[row.sequence])}",
        "for row in rows}",
        (f"{ENDINGS}::test_a_failed_load_says_nothing_of_the_same_adapters_next_fill",),
    ),
    Guard(
        "who_was_preempted_from_a_load_that_failed_goes_on",
        SCHEDULER,
        "Place.PARKED and self._never_filled(row, found))",
        "Place.PARKED and row.slot in {slot for slot, _ in result.failed_loads})",
        (f"{ENDINGS}::test_who_was_preempted_from_a_load_that_failed_goes_on_though_two_steps_had_its_rows",),
    ),
    # Steps that overlap with the host's work.
    Guard(
        "what_begins_or_ends_an_answer_waits_for_no_step",
        "platform/lorry/engine/choices.py",
        "if update.first is not None or update.finish is not None or update.error is not None:",
        "if update.error is not None:",
        (f"{OVERLAP}::test_tokens_amid_an_answer_are_made_between_submit_and_collect_and_others_at_once",),
    ),
    Guard(
        "tokens_are_told_before_the_step_is_waited_for",
        "platform/lorry/engine/core.py",
        "                self._post_process(later)\n                self._tell_readers()\n",
        "                self._post_process(later)\n",
        (f"{OVERLAP}::test_tokens_amid_an_answer_are_made_between_submit_and_collect_and_others_at_once",),
    ),
    Guard(
        "tokens_amid_an_answer_are_made",
        "platform/lorry/engine/core.py",
        "(self._later if waits else at_once).append((update, plan.step))",
        "([] if waits else at_once).append((update, plan.step))",
        (f"{OVERLAP}::test_every_answer_is_the_same",),
    ),
    Guard(
        "what_a_stop_string_may_end_is_not_put_off",
        "platform/lorry/engine/choices.py",
        "choice is not None and not choice.call.request.stopping.stop",
        "choice is not None",
        (f"{OVERLAP}::test_a_stop_string_ends_an_answer_whose_slot_goes_with_the_next_plan",),
    ),
    Guard(
        "a_card_works_by_itself",
        "platform/lorry/engine/gpu/runner.py",
        'self.overlaps = device.shape.device.type == "cuda"',
        "self.overlaps = False",
        (f"{OVERLAP}::test_a_card_works_by_itself[cuda-True]",),
    ),
)

__all__ = ["GUARDS"]
