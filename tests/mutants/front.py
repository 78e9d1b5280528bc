"""Guards of validation: names, targets, scales, coverage, fields, copies, values, the probe."""

from __future__ import annotations

from tests.mutants.guard import Guard

ADAPTERS = "platform/lorry/adapters"
TENSORS = "tests/unit/adapters/test_tensors.py"
BAD = f"{TENSORS}::test_a_bad_tensor_is_refused"
TIED_BAD = "tests/unit/adapters/test_tensors_tied.py::test_what_a_tied_base_cannot_take_is_refused"
REFUSED = "tests/unit/adapters/test_validate.py::test_bad_adapter_is_refused"
FIELDS = "tests/unit/adapters/test_fields.py"
CONFIG = "tests/unit/adapters/test_config.py"
COPIES = "tests/unit/adapters/test_copies.py"
PROBE = "tests/unit/adapters/test_probe.py"
OWN = "tests/unit/adapters/test_guards.py"

GUARDS = (
    # Kind 4: names are whole.
    Guard(
        "names_have_peft_s_prefix",
        f"{ADAPTERS}/names.py",
        "    if name.startswith(PREFIX):\n",
        "    if True:\n",
        (f"{OWN}::test_a_name_without_pefts_prefix_is_refused",),
    ),
    Guard(
        "listed_targets_are_whole_names",
        f"{ADAPTERS}/config/targets.py",
        '        return any(".".join(parts[at:]) in self.names for at in range(len(parts)))\n',
        "        return bool(parts) and module.endswith(tuple(self.names))\n",
        (f"{CONFIG}::test_targets_are_pefts",),
    ),
    Guard(
        "saved_names_are_whole",
        f"{ADAPTERS}/config/targets.py",
        r'        return any(re.search(rf"(?:^|\.){name}(?:$|\.)", module) for name in self.names)' "\n",
        "        return any(re.search(name, module) for name in self.names)\n",
        (f"{CONFIG}::test_targets_are_pefts",),
    ),
    Guard(
        "patterns_match_after_a_dot",
        f"{ADAPTERS}/config/by_module.py",
        r'rf"(.*\.)?({source})$"',
        r'rf".*({source})$"',
        (f"{CONFIG}::test_ranks_and_scales_are_pefts",),
    ),
    Guard(
        "a_part_is_there_once",
        f"{ADAPTERS}/names.py",
        "        elif part in found.setdefault(module, {}):\n",
        "        elif found.setdefault(module, {}) is None:\n",
        (f"{BAD}[both spellings]",),
    ),
    # Kind 6: every tensor is applied, and one at least.
    Guard(
        "a_name_of_no_module_refuses",
        f"{ADAPTERS}/names.py",
        "            wrong.setdefault(_kind(info.name), []).append(info.name)\n",
        "            continue\n",
        (f"{BAD}[extra tensor]",),
    ),
    Guard(
        "coverage_is_n_of_n",
        f"{ADAPTERS}/rows.py",
        "    if applied == 0 or applied + copies != have:\n",
        "    if applied == 0:\n",
        (f"{OWN}::test_coverage_counts_every_tensor_of_the_file",),
    ),
    Guard(
        "coverage_is_not_of_copies_alone",
        f"{ADAPTERS}/rows.py",
        "    if applied == 0 or applied + copies != have:\n",
        "    if applied + copies != have:\n",
        (f"{TENSORS}::test_an_adapter_of_copies_alone_is_refused",),
    ),
    Guard(
        "nothing_that_matches_refuses",
        f"{ADAPTERS}/tensors.py",
        "    if not applied and not (parts and faults.found):\n",
        "    if False:\n",
        (f"{REFUSED}[another architecture]", f"{REFUSED}[no tensors]"),
    ),
    Guard(
        "only_targets_have_tensors",
        f"{ADAPTERS}/linears.py",
        '    if any(part in parts for part in (*_LORA_PARTS, "gain")) and not linear.targeted:\n',
        "    if False:\n",
        (f"{REFUSED}[modules that the config does not target]",),
    ),
    Guard(
        "factors_come_in_pairs",
        f"{ADAPTERS}/linears.py",
        "            faults(\"tensors.pairs\", linear.module, f\"has no lora_{'A' if a is None else 'B'}\", _WHOLE)\n",
        "            pass\n",
        (f"{REFUSED}[missing B]",),
    ),
    Guard(
        "a_field_that_is_set_has_its_tensor",
        f"{ADAPTERS}/linears.py",
        "    if on and info is None:\n",
        "    if False:\n",
        (f"{BAD}[the field without magnitudes]", f"{BAD}[the field without biases of B]"),
    ),
    Guard(
        "a_tensor_has_its_field",
        f"{ADAPTERS}/linears.py",
        "    elif info is not None and not on:\n",
        "    elif False:\n",
        (f"{BAD}[magnitude without the field]",),
    ),
    # Kind 7: ranks and scales.
    Guard(
        "rslora_divides_by_the_root",
        f"{ADAPTERS}/config/lora.py",
        "(math.sqrt(rank) if self.rslora else rank)",
        "rank",
        (f"{TENSORS}::test_one_scale_and_rank_for_each_module_whatever_the_others_are",),
    ),
    Guard(
        "literal_patterns_count",
        f"{ADAPTERS}/config/by_module.py",
        "                found = pattern.match(module) is not None\n",
        "                found = False\n",
        (f"{TENSORS}::test_one_scale_and_rank_for_each_module_whatever_the_others_are",),
    ),
    Guard(
        "ranks_are_at_least_1",
        f"{ADAPTERS}/config/by_module.py",
        "1 <= value < 1 << 31",
        "value < 1 << 31",
        (f"{REFUSED}[r = 0]",),
    ),
    Guard(
        "ranks_are_the_file_s",
        f"{ADAPTERS}/linears.py",
        "    elif shape[axis] != rank:\n",
        "    elif False:\n",
        (f"{REFUSED}[rank above the config's]",),
    ),
    Guard(
        "ranks_are_bounded",
        f"{ADAPTERS}/rows.py",
        "    if largest > max_rank:\n",
        "    if False:\n",
        ("tests/unit/adapters/test_validate.py::test_rank_over_the_limit",),
    ),
    Guard(
        "the_image_has_the_whole_scale",
        f"{ADAPTERS}/image/build.py",
        "part_b.mul(module.scale)",
        "part_b.mul(module.scale / 2)",
        (f"{PROBE}::test_it_passes_for_every_kind_at_once",),
    ),
    Guard(
        "the_probe_is_narrow",
        f"{ADAPTERS}/probe.py",
        "TOLERANCE = 1e-4\n",
        "TOLERANCE = 1e-1\n",
        (f"{PROBE}::test_it_names_the_place_that_differs_by_a_hundredth",),
    ),
    Guard(
        "the_probe_sees_what_is_no_number",
        f"{ADAPTERS}/probe.py",
        "    if not worst <= TOLERANCE:",
        "    if worst > TOLERANCE:",
        (f"{OWN}::test_the_probe_refuses_what_is_no_number",),
    ),
    Guard(
        "what_is_no_number_is_the_largest_error",
        f"{ADAPTERS}/probe.py",
        "    worst, place = max(errors, key=lambda error: (math.isnan(error[0]), error[0]), default=",
        "    worst, place = max(errors, default=",
        (f"{OWN}::test_the_probe_refuses_what_is_no_number",),
    ),
    # Kind 8: one module missing in one layer.
    Guard(
        "a_missing_module_is_missing_alone",
        f"{ADAPTERS}/tensors.py",
        "        if name not in parts:\n            continue\n",
        "        if name not in parts:\n            break\n",
        ("tests/unit/adapters/test_validate.py::test_a_module_missing_in_one_layer_stays_in_the_others",),
    ),
    # Fields and initialisers that nobody has decided on, or that are refused.
    Guard(
        "unknown_fields_refuse",
        f"{ADAPTERS}/config/read.py",
        "    for field in unknown[:_SHOWN]:\n",
        "    for field in unknown[:0]:\n",
        (f"{FIELDS}::test_refused_by_field_name_with_a_remedy[LORA-an_unknown_field=None]",),
    ),
    Guard(
        "refused_fields_refuse",
        f"{ADAPTERS}/config/read.py",
        "        if rule is not None and not rule.takes(value):\n",
        "        if False:\n",
        (f"{FIELDS}::test_refused_by_field_name_with_a_remedy",),
    ),
    Guard(
        "unknown_initialisers_refuse",
        f"{ADAPTERS}/config/lora.py",
        "    known = initialiser(value)\n",
        "    known = initialiser(value) or initialiser(True)\n",
        (f"{FIELDS}::test_refused_by_field_name_with_a_remedy[LORA-init_lora_weights=something_new]",),
    ),
    Guard(
        "initialisers_that_change_the_base_refuse",
        f"{ADAPTERS}/config/lora.py",
        "    elif not known.served:\n",
        "    elif False:\n",
        (f"{FIELDS}::test_refused_by_field_name_with_a_remedy[LORA-init_lora_weights=pissa]",),
    ),
    # Input gains, output gains.
    Guard(
        "gains_on_inputs_are_not_on_outputs",
        f"{ADAPTERS}/linears.py",
        "    return ModulePlan(input_gain_tensor=info.name) if on_input else ",
        "    return ",
        (f"{TENSORS}::test_ia3_by_feedforward_modules",),
    ),
    Guard(
        "gains_have_the_shape_of_their_side",
        f"{ADAPTERS}/linears.py",
        "    if info.shape != want:\n",
        "    if False:\n",
        (f"{TENSORS}::test_ia3_by_feedforward_modules",),
    ),
    # Saved copies, twins, larger vocabularies.
    Guard(
        "copies_are_the_base_s",
        f"{ADAPTERS}/copies.py",
        '    wrong = [name for name, how in alike.items() if how != "equal" and name not in rounded]\n',
        "    wrong = []\n",
        (f"{COPIES}::test_a_copy_is_the_base_s_or_its_rounding_or_refused",),
    ),
    Guard(
        "only_whole_matrices_may_be_rounded",
        f"{ADAPTERS}/copies.py",
        'if how == "rounded" and planned.copies[name] in outer]',
        'if how == "rounded"]',
        (f"{OWN}::test_a_rounded_copy_of_a_linear_is_refused",),
    ),
    Guard(
        "without_the_base_no_copy_is_taken",
        f"{ADAPTERS}/copies.py",
        "    if not planned.copies:\n",
        "    if not planned.copies or base_dir is None:\n",
        (f"{COPIES}::test_without_the_base_a_copy_cannot_be_judged",),
    ),
    Guard(
        "twins_are_equal",
        f"{ADAPTERS}/copies.py",
        '        if _alike(_Stored.of(weights, name), _Stored.of(weights, other, turned)) != "equal"\n',
        "        if not name\n",
        (f"{BAD}[saved twice, and not the same]", f"{TIED_BAD}[a tied pair that differs]"),
    ),
    Guard(
        "a_larger_vocabulary_has_both_matrices",
        f"{ADAPTERS}/outer.py",
        "                    self._no_matrix(module)\n",
        "                    pass\n",
        (f"{BAD}[a larger vocabulary of one matrix]",),
    ),
    Guard(
        "one_vocabulary_for_both_matrices",
        f"{ADAPTERS}/outer.py",
        "        if len(have) > 1:\n",
        "        if False:\n",
        (f"{BAD}[matrices of two vocabularies]",),
    ),
    Guard(
        "trained_tokens_are_of_the_vocabulary",
        f"{ADAPTERS}/outer.py",
        "        if max(ids) >= self.rows:\n",
        "        if False:\n",
        (f"{BAD}[an id beyond the vocabulary]",),
    ),
    # Values.
    Guard(
        "values_are_finite",
        f"{ADAPTERS}/values.py",
        '    bad = [f"{name} holds NaN or infinity" for name, top in tops.items() if top == math.inf]\n',
        "    bad = list[str]()\n",
        (f"{REFUSED}[NaN weight]",),
    ),
    Guard(
        "a_failed_row_refuses",
        f"{ADAPTERS}/validate.py",
        "    if plan is None or run.failed:\n",
        "    if plan is None:\n",
        (f"{REFUSED}[NaN weight]",),
    ),
)

__all__ = ["GUARDS"]
