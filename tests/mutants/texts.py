"""Guards of text: which tokenizer a version has, that its files are those, and how much they may take."""

from __future__ import annotations

from tests.mutants.guard import Guard

CHOICES = "platform/lorry/engine/choices.py"
OWN_TEXT = "tests/unit/engine/test_own_text.py"
WORKER = "tests/unit/text/test_worker.py"
WORKER_FILE = "platform/lorry/text/worker.py"
TEXTS = "tests/unit/gateway/test_texts.py"
TEXT_SIDE = "tests/unit/adapters/test_text_side.py"

GUARDS = (
    # What a version's files may do to the process that reads or answers with them.
    Guard(
        "a_decoder_cannot_multiply",
        "platform/lorry/text/pieces.py",
        "    if growth > _MAX_GROWTH:\n",
        "    if False:\n",
        ("tests/unit/text/test_overlay.py::test_a_decoder_that_multiplies_is_refused",),
    ),
    Guard(
        "what_others_left_is_not_held_against_a_version",
        WORKER_FILE,
        "                if not (ended.memory and others):\n",
        "                if True:\n",
        (f"{WORKER}::test_what_others_left_in_the_child_is_not_held_against_a_version",),
    ),
    Guard(
        "tokens_that_only_the_settings_name_are_refused",
        "platform/lorry/text/overlay.py",
        "    _check_named(own, base_dir, folder)\n",
        "",
        ("tests/unit/text/test_overlay.py::test_tokens_that_only_the_settings_name_are_refused",),
    ),
    # A slot may outlast its version's copy in host memory.
    Guard(
        "texts_are_kept_with_the_slot",
        "platform/lorry/engine/core.py",
        "self._emit, clock, self._texts)\n",
        "self._emit, clock, text)\n",
        ("tests/unit/engine/test_evicted_copy.py::test_it_answers_after_the_host_tier_gave_its_copy_to_another",),
    ),
    # The files are the registered ones, and so is what they make.
    Guard(
        "text_files_are_hashed_as_they_arrive",
        "platform/lorry/adapters/store.py",
        "                if size != expected_size or digest.hexdigest() != expected_sha256:\n",
        "                if size != expected_size:\n",
        (f"{TEXTS}::test_what_fails_is_the_versions_own_fault_and_is_tried_again",),
    ),
    Guard(
        "files_make_the_tokenizer_that_was_registered",
        "platform/lorry/text/worker.py",
        '        if found["sha256"] != text.sha256:\n',
        "        if False:\n",
        (f"{WORKER}::test_files_that_are_not_those_that_were_registered",),
    ),
    Guard(
        "the_tokenizer_loaded_is_the_one_named",
        CHOICES,
        "            if tokenizer.sha256 != want:\n",
        "            if False:\n",
        (f"{OWN_TEXT}::test_another_text_side_than_the_one_named_is_never_used",),
    ),
    Guard(
        "the_engine_s_tokenizer_is_the_registered_one",
        "platform/lorry/gateway/routes.py",
        "        if tokenizer.sha256 != base.tokenizer_sha256 or info.tokenizer_sha256 != base.tokenizer_sha256:\n",
        "        if False:\n",
        ("tests/unit/gateway/test_routes.py::test_any_tokenizer_that_differs_is_refused",),
    ),
    Guard(
        "the_tokenizer_stated_is_compared",
        "platform/lorry/gateway/provenance.py",
        '            ("tokenizer", self.tokenizer_sha256, stated.tokenizer_sha256),\n',
        "",
        (
            "tests/integration/gateway/test_version_text.py"
            "::test_an_engine_that_used_other_words_is_not_passed_on[False]",
        ),
    ),
    Guard(
        "text_is_of_the_version_and_not_of_the_base",
        CHOICES,
        "            tokenizer = own or self._tokenizer\n",
        "            tokenizer = self._tokenizer\n",
        (f"{OWN_TEXT}::test_each_in_its_own_words_in_one_batch",),
    ),
    # A version's ids have rows, and end its answers.
    Guard(
        "a_tokenizer_has_no_more_ids_than_rows",
        "platform/lorry/adapters/text_side.py",
        "    if facts.vocabulary > rows:\n",
        "    if False:\n",
        (f"{TEXT_SIDE}::test_a_tokenizer_beyond_the_rows_is_refused_unless_the_version_brings_them",),
    ),
    Guard(
        "end_ids_have_rows",
        "platform/lorry/adapters/text_side.py",
        "    if any(one >= rows for one in facts.end_ids):\n",
        "    if False:\n",
        (f"{TEXT_SIDE}::test_end_ids_without_a_row_are_refused",),
    ),
    Guard(
        "end_ids_are_the_version_s",
        CHOICES,
        "        end_ids=None if request.text is None else request.text.end_ids,\n",
        "",
        (f"{OWN_TEXT}::test_its_own_ids_end_it",),
    ),
    Guard(
        "end_ids_stand_in_for_the_base_s",
        "platform/lorry/scheduler/running.py",
        "eos if own is None else frozenset(own)",
        "eos if own is None else eos | frozenset(own)",
        ("tests/unit/scheduler/test_own_text.py::test_its_own_ids_end_it_in_place_of_the_bases",),
    ),
    Guard(
        "ids_are_below_the_version_s_vocabulary",
        "platform/lorry/engine/core.py",
        "        wrong = next((t for t in request.prompt if not 0 <= t < vocabulary), None)\n",
        "        wrong = next((t for t in request.prompt if t < 0), None)\n",
        (f"{OWN_TEXT}::test_ids_are_below_its_own_vocabulary",),
    ),
    Guard(
        "the_base_has_no_version_s_text",
        "platform/lorry/engine/core.py",
        "        if request.adapter is None and (request.text is not None or vocabulary != self._vocabulary):\n",
        "        if False:\n",
        (f"{OWN_TEXT}::test_another_text_side_than_the_one_named_is_never_used",),
    ),
    # A prefix is of one tokenizer.
    Guard(
        "prefix_keys_have_the_version_s_tokenizer",
        "platform/lorry/scheduler/prefixes.py",
        "            key = replace(key, tokenizer_sha256=own)\n",
        "            pass\n",
        ("tests/unit/scheduler/test_own_text.py::test_a_prefix_is_of_one_tokenizer",),
    ),
    Guard(
        "prefix_keys_have_the_tokenizer",
        "platform/lorry/kvcache/prefix.py",
        "    for entry in fields(key):\n",
        '    for entry in (one for one in fields(key) if one.name != "tokenizer_sha256"):\n',
        ("tests/unit/kvcache/test_prefix.py::test_any_one_changed_field_changes_the_key",),
    ),
    Guard(
        "the_scheduler_knows_the_version_s_tokenizer",
        CHOICES,
        '        tokenizer_sha256="" if request.text is None else request.text.sha256,\n',
        "",
        ("tests/unit/engine/test_named_text.py::test_the_scheduler_knows_end_ids_and_tokenizer_of_each_choice",),
    ),
    # What a tenant's text may take.
    Guard(
        "embedded_templates_are_bounded",
        "platform/lorry/text/files.py",
        "        if embedded is not None and len(embedded) > LIMITS[TEMPLATE]:\n",
        "        if False:\n",
        ("tests/unit/text/test_overlay.py::test_broken_files_are_refused_by_name",),
    ),
    Guard(
        "text_files_over_the_limit_are_not_fetched",
        "platform/lorry/gateway/texts.py",
        "            if file.size > LIMITS[file.path]:\n",
        "            if False:\n",
        (f"{TEXTS}::test_files_over_the_limit_are_not_fetched",),
    ),
    Guard(
        "what_a_version_s_text_makes_is_bounded",
        "platform/lorry/text/child.py",
        '    return {"made": made} if len(made) <= asked["most"] else {"over": len(made)}\n',
        '    return {"made": made}\n',
        (f"{WORKER}::test_more_ids_than_any_context_are_refused",),
    ),
    Guard(
        "what_was_ended_once_is_barred",
        "platform/lorry/text/worker.py",
        "        self._refuse_barred(text, field)\n",
        "",
        (f"{WORKER}::test_what_was_ended_once_is_refused_without_a_try_for_a_while",),
    ),
)

__all__ = ["GUARDS"]
