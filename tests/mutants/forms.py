"""Guards of what adapters do in a captured step beside LoRA: input gains, embeddings and heads of their own."""

from __future__ import annotations

from tests.mutants.guard import Guard

KERNELS = "kernels/lorry_kernels/ops"
ADAPTERS = "platform/lorry/engine/gpu/adapters.py"
RUNNER = "platform/lorry/engine/gpu/runner.py"
SITE = "platform/lorry/models/site_lora.py"
EMBEDDING = "platform/lorry/models/own_embedding.py"
ARENA = "platform/lorry/layers/extras_arena.py"
FORMS = "tests/unit/engine/gpu/test_forms.py"
STORAGE = "tests/unit/engine/gpu/test_storage.py"
ALL_KINDS = f"{FORMS}::test_one_graph_of_all_kinds_and_their_slots_again"
EAGER = f"{FORMS}::test_an_eager_step_launches_what_its_adapters_need"

GUARDS = (
    Guard(
        "an_emptied_slot_has_no_embedding",
        "platform/lorry/layers/slot_tables.py",
        "        self.embedding.clear(slot)\n",
        "",
        (ALL_KINDS,),
    ),
    Guard(
        "an_emptied_slot_has_no_head",
        "platform/lorry/layers/slot_tables.py",
        "        self.head.clear(slot)\n",
        "",
        (ALL_KINDS,),
    ),
    Guard(
        "the_row_of_another_fill_has_no_lora_on_the_head",
        RUNNER,
        "routing=decode.routing if own else None",
        "routing=self._decoder.head_routing(inputs.slot) if own else None",
        (f"{FORMS}::test_the_row_of_another_fill_runs_as_the_bases[head]",),
    ),
    Guard(
        "an_eager_step_adds_lora_to_the_head",
        RUNNER,
        "if slot is not None and any(isinstance(",
        "if slot is None and any(isinstance(",
        (f"{FORMS}::test_heads_of_an_eager_step_and_of_a_scored_prompt",),
    ),
    Guard(
        "a_refused_load_gives_its_room_back",
        ADAPTERS,
        "            self._extras.release(extras)\n            raise\n",
        "            raise\n",
        (f"{STORAGE}::test_damaged_embeddings_and_heads_are_never_published_or_kept[before]",),
    ),
    Guard(
        "what_moved_is_pointed_at",
        ADAPTERS,
        "                self._point(slot, self._slots[slot].extras)\n",
        "                pass\n",
        (f"{STORAGE}::test_what_lies_in_pieces_moves_together",),
    ),
    Guard(
        "pieces_that_overlap_are_moved_through_a_copy",
        ARENA,
        " = source.clone()  # the two may overlap\n",
        " = source\n",
        ("tests/unit/layers/test_extras_arena.py::test_a_piece_that_moves_by_less_than_its_size_keeps_its_bytes",),
    ),
    Guard(
        "a_step_has_the_form_of_all_its_rows",
        RUNNER,
        "form = max((entry.form",
        "form = min((entry.form",
        (f"{FORMS}::test_an_own_head_of_another_vocabulary_is_outside_the_graph",),
    ),
    Guard(
        "rows_with_a_head_of_their_own_do_not_take_the_graphs_logits",
        RUNNER,
        "if logits is not None and (extras is None or not isinstance(extras.head, HeadExtras)):",
        "if logits is not None:",
        (f"{FORMS}::test_an_own_head_of_another_vocabulary_is_outside_the_graph",),
    ),
    Guard(
        "no_gain_is_launched_where_nobody_has_one",
        RUNNER,
        "    return Beside(gains, embedding)\n",
        "    return Beside({(0, site): (0,) for site in Site}, embedding)\n",
        (EAGER,),
    ),
    Guard(
        "lora_reads_x_without_the_gain",
        SITE,
        "            found = torch.empty_like(x)\n",
        "            found = x\n",
        (ALL_KINDS,),
    ),
    Guard(
        "only_rows_with_a_gain_take_the_slices_product",
        f"{KERNELS}/input_gain.py",
        "    if at >= 0:\n        n = tl",
        "    if at >= -1:\n        n = tl",
        ("tests/kernels/test_ops_embedding.py::test_rows_with_a_gain_take_the_other_product",),
    ),
    Guard(
        "an_id_has_its_adapters_row",
        EMBEDDING,
        "            replace_rows(y, own, routing, single)\n",
        "",
        (ALL_KINDS,),
    ),
    Guard(
        "doras_gain_is_over_the_whole_embedding",
        EMBEDDING,
        "lora.scale, routing, plan, gains)",
        "lora.scale, routing, plan)",
        (ALL_KINDS,),
    ),
)

__all__ = ["GUARDS"]
