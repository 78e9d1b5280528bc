"""From the tensors of embedding and head to what is applied there, on tied and untied bases, as PEFT does. No torch.

On a tied base one matrix W is embedding and head, and PEFT's wrappers part them:

    LoRA on embed_tokens             the embedding alone; with ensure_weight_tying the head too, transposed
    embed_tokens in modules_to_save  the embedding alone; with ensure_weight_tying the head too
    trained tokens of embed_tokens   both, unless lm_head has a list of its own that differs

A matrix of more rows than the base's is W of a larger vocabulary, whatever wrapper's name it is saved under.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lorry.adapters.config.lora import EMBEDDING, HEAD
from lorry.adapters.config.read import AdapterConfig
from lorry.adapters.faults import Faults
from lorry.adapters.header import TensorInfo
from lorry.adapters.linears import Linear, check_factor, check_flag, check_vector, plan_linear
from lorry.adapters.names import Part, Parts
from lorry.adapters.plan import EmbeddingPlan, HeadPlan, ModulePlan
from lorry.layers import spec as base_names
from lorry.layers.spec import DecoderSpec

_WHOLE = "save the adapter again, whole"
_COPIES: tuple[Part, ...] = ("base_layer.weight", "original_module.weight", "token_adapter.base_layer.weight")
_TOKENS = "trainable_token_indices"


@dataclass(slots=True)
class Outer:
    """``copies``: tensor to the base's tensor that it must equal. ``twins``: tensor to the one of the file that it must
    equal, and whether turned. ``spare``: saved beside what is applied, and read by nothing. ``vocabulary``: rows of the
    larger matrices, None: the base's."""

    embedding: EmbeddingPlan | None = None
    head: HeadPlan | None = None
    copies: dict[str, str] = field(default_factory=dict)
    twins: dict[str, tuple[str, bool]] = field(default_factory=dict)
    spare: list[str] = field(default_factory=list)
    vocabulary: int | None = None


def plan_outer(parts: Parts, config: AdapterConfig, spec: DecoderSpec, faults: Faults) -> Outer:
    """Raises PatternRefused."""
    return _Planner(parts.get(EMBEDDING, {}), parts.get(HEAD, {}), config, spec, faults).plan()


class _Planner:
    def __init__(
        self,
        embedding: Mapping[Part, TensorInfo],
        head: Mapping[Part, TensorInfo],
        config: AdapterConfig,
        spec: DecoderSpec,
        faults: Faults,
    ) -> None:
        self.parts = {EMBEDDING: embedding, HEAD: head}
        self.config = config
        self.spec = spec
        self.faults = faults
        self.found = Outer()
        lora = config.lora
        ties = lora is not None and lora.ties and spec.tied_head
        self.ties_saved = ties and config.saved.names_an_embedding()
        self.ties_lora = ties and not self.ties_saved and config.target.names_an_embedding()
        self.tokens: Mapping[str, tuple[int, ...]] = {} if lora is None else lora.tokens

    def plan(self) -> Outer:
        self.found.vocabulary = self._larger_vocabulary()
        self.rows = self.found.vocabulary or self.spec.vocabulary
        weights = self._weights()
        e_ids, e_rows = self._token_rows(EMBEDDING)
        h_ids, h_rows = self._head_rows(e_ids, e_rows)
        embedding = self._embedding(weights[EMBEDDING], e_ids, e_rows)
        head = HeadPlan(weights[HEAD], self._head_module(bool(h_ids)), h_ids, h_rows)
        self.found.embedding = None if embedding == EmbeddingPlan() else embedding
        self.found.head = None if head == HeadPlan() else head
        return self.found

    def saves(self, module: str) -> bool:
        """Whether PEFT replaces the module whole."""
        return self.ties_saved or self.config.saved.saves(module)

    def targets(self, module: str) -> bool:
        """Whether PEFT puts an adapter on the module."""
        return not self.saves(module) and (self.ties_lora or self.config.targets(module))

    # Whole matrices.

    def _larger_vocabulary(self) -> int | None:
        """Rows of the matrices in the file where they are more than the base's."""
        have: dict[int, str] = {}
        for parts in self.parts.values():
            for part, info in parts.items():
                if not part.endswith("weight"):
                    continue
                if len(info.shape) != 2 or info.shape[1] != self.spec.hidden:
                    self._bad_shape(info, f"[{self.spec.vocabulary}, {self.spec.hidden}]")
                else:
                    have.setdefault(info.shape[0], info.name)
        rows = max(have, default=self.spec.vocabulary)
        if len(have) > 1:
            names = " and ".join(f"{name} has {count} rows" for count, name in sorted(have.items()))
            self.faults("vocabulary", names, "", "save embed_tokens and lm_head of one vocabulary")
        elif rows < self.spec.vocabulary:
            what = f"has {rows} rows, fewer than the base's {self.spec.vocabulary}"
            self.faults("vocabulary", have[rows], what, "resize the embeddings to the base's rows or more")
        return rows if rows > self.spec.vocabulary else None

    def _weights(self) -> dict[str, str | None]:
        """The matrix that stands in for the base's, by module."""
        own = {module: self._replacement(module) for module in self.parts}
        copies = {module: self._base_copies(module) for module in self.parts}
        embedding, head = own[EMBEDDING], own[HEAD]
        if self.ties_saved and embedding is not None and head is not None:
            self.found.twins[head] = (embedding, False)
            own[HEAD] = embedding
        if self.found.vocabulary is None:
            for module, names in copies.items():
                tensor = base_names.HEAD if module == HEAD and not self.spec.tied_head else base_names.EMBEDDING
                self.found.copies |= dict.fromkeys(names, tensor)
            return own
        slots = [(EMBEDDING, HEAD)] if self.spec.tied_head else [(EMBEDDING,), (HEAD,)]
        for modules in slots:
            names = [name for module in modules for name in copies[module]]
            for twin in names[1:]:
                self.found.twins[twin] = (names[0], False)
            for module in modules:
                if own[module] is None and names:
                    own[module] = names[0]
                elif own[module] is None:
                    self._no_matrix(module)
            if names and names[0] not in own.values():
                self.found.spare.append(names[0])
        return own

    def _no_matrix(self, module: str) -> None:
        what = f"of the {self.rows} rows of the larger vocabulary is not in the file"
        remedy = "put embed_tokens and lm_head into modules_to_save, or neither into target_modules"
        self.faults("vocabulary", f"{module}'s matrix", what, remedy)

    def _replacement(self, module: str) -> str | None:
        """What ``modules_to_save`` put in the module's place."""
        parts = self.parts[module]
        again = parts.get("modules_to_save.weight")
        if not self.saves(module):
            if again is not None:
                self._field_off("modules_to_save", again.name, "is in the file and the config does not name it")
            return None
        info = parts.get("weight")
        if info is None:
            self._field_off("modules_to_save", module, "is named and its matrix is not in the file")
            return None
        if again is not None:
            self.found.twins[again.name] = (info.name, False)
        return info.name

    def _base_copies(self, module: str) -> list[str]:
        """The base's own matrix as it was saved, under any wrapper's name."""
        parts = self.parts[module]
        kinds = _COPIES if self.saves(module) else ("weight", *_COPIES)
        return [parts[kind].name for kind in kinds if kind in parts]

    # Trained tokens.

    def _token_rows(self, module: str) -> tuple[tuple[int, ...], str | None]:
        """(ids, tensor) of the module's own list."""
        ids = self.tokens.get(module, ())
        info = self.parts[module].get("rows")
        if not ids:
            return (), None
        if self.saves(module) or self.targets(module):
            self._field_off(_TOKENS, module, "has trained tokens and is in modules_to_save or target_modules too")
        if max(ids) >= self.rows:
            what = f"names {max(ids)}, and there are {self.rows} rows"
            self.faults.field(_TOKENS, module, what, "save with save_embedding_layers=True where the vocabulary grew")
        if info is None:
            self._field_off(_TOKENS, module, "is named and its rows are not in the file")
            return (), None
        if info.shape != (len(ids), self.spec.hidden):
            self._bad_shape(info, f"[{len(ids)}, {self.spec.hidden}]")
        return ids, info.name

    def _head_rows(self, e_ids: tuple[int, ...], e_rows: str | None) -> tuple[tuple[int, ...], str | None]:
        asked = self.tokens.get(EMBEDDING, ())
        own = self.tokens.get(HEAD)
        info = self.parts[HEAD].get("rows")
        tied = self.spec.tied_head and bool(asked) and own in (None, asked)
        if not asked and self.parts[EMBEDDING].get("rows") is not None:
            self._field_off(_TOKENS, self.parts[EMBEDDING]["rows"].name, "is in the file and the config has no ids")
        if not tied:
            if own is None and info is not None:
                self._field_off(_TOKENS, info.name, "is in the file and the config has no ids for it")
            lora = self.config.lora
            if own and asked and self.spec.tied_head and lora is not None and lora.ties:
                self._field_off("ensure_weight_tying", _TOKENS, "has other ids for lm_head than for embed_tokens")
            return self._token_rows(HEAD)
        if self.saves(HEAD):
            self._field_off("modules_to_save", HEAD, f"is tied to embed_tokens, which has {_TOKENS}")
        if info is not None and e_rows is not None:
            self.found.twins[info.name] = (e_rows, False)
        return e_ids, e_rows

    # Low rank and gains.

    def _embedding(self, weight: str | None, ids: tuple[int, ...], rows: str | None) -> EmbeddingPlan:
        parts, lora = self.parts[EMBEDDING], self.config.lora
        a, b, magnitude = (parts.get(part) for part in ("embedding_A", "embedding_B", "magnitude"))
        if a is None or b is None:
            if any(info is not None for info in (a, b, magnitude)):
                self.faults("tensors.pairs", EMBEDDING, f"has no lora_embedding_{'A' if a is None else 'B'}", _WHOLE)
            return EmbeddingPlan(weight_tensor=weight, token_ids=ids, rows_tensor=rows)
        if lora is None:
            self._field_off("peft_type", a.name, "is LoRA's, and the config's is IA3")
            return EmbeddingPlan()
        if not self.targets(EMBEDDING):
            self._field_off("target_modules", EMBEDDING, "has tensors but the config does not target it")
        if lora.lora_bias:
            self._field_off("lora_bias", EMBEDDING, "is an embedding, for which PEFT has none")
        rank = lora.rank(EMBEDDING)
        check_factor(a, 0, rank, self.rows, self.faults)
        check_factor(b, 1, rank, self.spec.hidden, self.faults)
        check_vector(magnitude, self.spec.hidden, self.faults)
        check_flag(EMBEDDING, "use_dora", lora.dora, magnitude, self.faults)
        scale, gain = lora.scale(EMBEDDING), None if magnitude is None else magnitude.name
        return EmbeddingPlan(weight, rank, scale, a.name, b.name, gain, ids, rows)

    def _head_module(self, has_rows: bool) -> ModulePlan | None:
        parts = self.parts[HEAD]
        linear = Linear(
            module=HEAD,
            out_features=self.rows,
            in_features=self.spec.hidden,
            has_bias=False,
            targeted=self.targets(HEAD),
            rank_of=EMBEDDING if self.ties_lora else HEAD,
        )
        plan = plan_linear(linear, parts, self.config, self.faults)
        if plan is not None and plan.magnitude_tensor is not None and has_rows:
            self._field_off(_TOKENS, HEAD, "has trained tokens under DoRA, which PEFT cannot compute")
        if not self.ties_lora:
            return plan
        a, b = self.parts[EMBEDDING].get("embedding_A"), self.parts[EMBEDDING].get("embedding_B")
        if a is None or b is None:
            if plan is not None:
                self._field_off("ensure_weight_tying", HEAD, "is tied to embed_tokens, which has no tensors")
            return plan
        if plan is not None:
            assert plan.a_tensor is not None
            assert plan.b_tensor is not None
            self.found.twins |= {plan.a_tensor: (b.name, True), plan.b_tensor: (a.name, True)}
            return plan
        lora = self.config.lora
        assert lora is not None
        if lora.dora:
            self._field_off("use_dora", HEAD, "is tied to embed_tokens and has no lora_magnitude_vector")
        return ModulePlan(lora.rank(EMBEDDING), lora.scale(HEAD), b.name, a.name, transposed=True)

    def _bad_shape(self, info: TensorInfo, want: str) -> None:
        message = f"{info.name} has shape {list(info.shape)}, want {want}"
        self.faults("tensors.shapes", message, "", "train the adapter on this base")

    def _field_off(self, field: str, name: str, what: str) -> None:
        self.faults.field(field, name, what, "change the config, or save the adapter again")


__all__ = ["Outer", "plan_outer"]
