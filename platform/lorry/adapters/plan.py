"""What a validated adapter applies, and where: the result of validation that the image is built from. No torch.

Every ``*_tensor`` is a name in the weights files, or None where the adapter has nothing of the kind. Shapes are those
in the file: K inputs, N outputs, H hidden size, V rows of the vocabulary that is served with the adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModulePlan:
    """One linear: ``y = g * (W (u * x) + scale * B (A x)) + bias``; the scale is PEFT's, resolved for this module
    (patterns and rsLoRA included), finite.

    LoRA: ``a_tensor`` ``[rank, K]``, ``b_tensor`` ``[N, rank]``; ``transposed``: ``[K, rank]`` and ``[rank, N]``. Rank
    0: none. ``b_bias_tensor`` ``[N]`` is scaled and added with the delta. DoRA: ``magnitude_tensor`` ``[N]`` over the
    norm of each row of W + scale B A is g, which leaves the bias alone. ``bias_tensor`` ``[N]`` stands in for the
    base's. IA3: ``input_gain_tensor`` (K elements) is u; ``output_gain_tensor`` (N elements) is g, and covers the bias.
    """

    rank: int = 0
    scale: float = 1.0
    a_tensor: str | None = None
    b_tensor: str | None = None
    transposed: bool = False
    b_bias_tensor: str | None = None
    magnitude_tensor: str | None = None
    bias_tensor: str | None = None
    input_gain_tensor: str | None = None
    output_gain_tensor: str | None = None

    def names(self) -> Iterator[str]:
        for name in (
            self.a_tensor,
            self.b_tensor,
            self.b_bias_tensor,
            self.magnitude_tensor,
            self.bias_tensor,
            self.input_gain_tensor,
            self.output_gain_tensor,
        ):
            if name is not None:
                yield name


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """``e(t) = g * (E[t] + scale * B A[:, t])``, and the rows of ``token_ids`` replaced after that.

    ``weight_tensor`` ``[V, H]`` stands in for the base's E. LoRA: ``a_tensor`` ``[rank, V]``, ``b_tensor``
    ``[H, rank]``. DoRA: ``magnitude_tensor`` ``[H]`` over the norm of each column of E + scale (B A)^T is g.
    ``rows_tensor`` ``[len(token_ids), H]`` are whole rows, in the order of ``token_ids``.
    """

    weight_tensor: str | None = None
    rank: int = 0
    scale: float = 1.0
    a_tensor: str | None = None
    b_tensor: str | None = None
    magnitude_tensor: str | None = None
    token_ids: tuple[int, ...] = ()
    rows_tensor: str | None = None

    def names(self) -> Iterator[str]:
        for name in (self.weight_tensor, self.a_tensor, self.b_tensor, self.magnitude_tensor, self.rows_tensor):
            if name is not None:
                yield name


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """The linear from the last norm to logits. ``weight_tensor`` ``[V, H]`` stands in for the base's weight (with a
    tied base it may be the embedding's tensor), whose rows of ``token_ids`` are then replaced by those of
    ``rows_tensor`` ``[len(token_ids), H]`` (trained tokens); ``module`` is what is added to it, as for any linear
    (K = H, N = V).
    """

    weight_tensor: str | None = None
    module: ModulePlan | None = None
    token_ids: tuple[int, ...] = ()
    rows_tensor: str | None = None

    def names(self) -> Iterator[str]:
        for name in (self.weight_tensor, self.rows_tensor):
            if name is not None:
                yield name
        if self.module is not None:
            yield from self.module.names()


@dataclass(frozen=True, slots=True)
class TextPlan:
    """The version's own text side, where its files decide another than the base's. ``sha256`` is
    ``lorry.text.tokenizer_digest`` of base and version together; ``vocabulary`` bounds the ids that it can make;
    ``end_ids`` end a generation, in place of the base's."""

    sha256: str
    vocabulary: int
    end_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """Every tensor of the weights files is named by a part of the plan, or is one of ``copies``.

    ``weights`` are file names. ``modules`` is keyed by (layer, slice name as in lorry.layers.sites); a key that is not
    there has no delta. ``norms`` maps the base's tensor name (``model.norm.weight``) to the tensor that stands in for
    it. ``copies`` are saved copies of base tensors that were found equal to them: they are not applied.
    ``vocabulary``: ids and logits of the version, None where they are the base's.
    """

    weights: tuple[str, ...]
    modules: Mapping[tuple[int, str], ModulePlan]
    norms: Mapping[str, str] = field(default_factory=dict)
    embedding: EmbeddingPlan | None = None
    head: HeadPlan | None = None
    copies: tuple[str, ...] = ()
    vocabulary: int | None = None
    text: TextPlan | None = None

    @property
    def rank(self) -> int:
        """The largest rank of a layer's module: rank rows that it takes on the device. 0 without LoRA."""
        return max((module.rank for module in self.modules.values()), default=0)

    def names(self) -> frozenset[str]:
        """Tensors that are applied."""
        found = set(self.norms.values())
        for part in (*self.modules.values(), self.embedding, self.head):
            if part is not None:
                found.update(part.names())
        return frozenset(found)

    @property
    def tensors(self) -> int:
        """How many tensors are accounted for."""
        return len(self.names() | set(self.copies))


__all__ = ["AdapterPlan", "EmbeddingPlan", "HeadPlan", "ModulePlan", "TextPlan"]
