"""A numeric probe of every place that an adapter changes: the platform's device image, through the kernels that serve,
against the file's own maths in float64. Imports torch.

The base's own product, which no adapter changes, is stood in for by random numbers. Embedding and head are widened
block by block: of a large vocabulary one such matrix in float64 is gigabytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lorry.adapters.header import HeaderLimits
from lorry.adapters.image.build import DeviceImage, build_image
from lorry.adapters.image.source import BaseWeights, no_base
from lorry.adapters.plan import AdapterPlan, EmbeddingPlan, HeadPlan, ModulePlan
from lorry.adapters.report import Check
from lorry.adapters.shards import WeightFiles
from lorry.errors import AdapterLoadFailed, UnsupportedBase
from lorry.ids import AdapterDigest
from lorry.layers.adapted import Adapted, ExtraRows, adapted_logits
from lorry.layers.extras import AdapterExtras, EmbeddingExtras, HeadExtras
from lorry.layers.linear import PlainLinear
from lorry.layers.sites import LoraSite, module_name
from lorry.layers.spec import EMBEDDING, HEAD, DecoderSpec
from lorry_kernels.cpu import lora_apply, route

TOLERANCE = 1e-4
"""Of a place's largest output. float32 products of 10,000 terms differ from float64 by about 1e-5 of it."""
_ROWS = 3
_TOKENS = 8
_BLOCK_ROWS = 8192
Read = Callable[[str | None], Tensor]
"""A tensor of the file, float32."""


def probe(directory: Path, plan: AdapterPlan, spec: DecoderSpec, base: BaseWeights = no_base) -> Check:
    """One row: the largest error over all places, with the place's name. ``plan`` is of this directory."""
    try:
        image = build_image(directory, plan, spec, torch.float32, AdapterDigest("0" * 64), base)
        with WeightFiles(directory, plan.weights, HeaderLimits()) as weights, torch.inference_mode():

            def read(name: str | None) -> Tensor:
                assert name is not None
                return torch.from_numpy(weights.read_tensor(name).copy())

            errors = [*_errors(plan, spec, image, read, base)]
    except (AdapterLoadFailed, UnsupportedBase) as error:
        return Check.fail("probe", error.message)
    worst, place = max(errors, key=lambda error: (math.isnan(error[0]), error[0]), default=(0.0, "nowhere"))
    where = f"{len(errors)} places, the largest error of an output is {worst:.1e} of it, at {place}"
    if not worst <= TOLERANCE:  # also where it is not a number
        message = f"{where}: the platform would not compute what the file says"
        return Check.fail("probe", message, worst, TOLERANCE)
    return Check("probe", "pass", where, worst, TOLERANCE)


def _errors(
    plan: AdapterPlan, spec: DecoderSpec, image: DeviceImage, read: Read, base: BaseWeights
) -> Iterator[tuple[float, str]]:
    draw = torch.Generator().manual_seed(0)
    for site in spec.lora_sites():
        modules = [plan.modules.get((site.layer, name)) for name in site.slices]
        if any(module is not None for module in modules):
            yield from _site_errors(site, modules, spec, image, read, base, draw)
    extras = image.extras or AdapterExtras()
    for name, tensor in plan.norms.items():
        yield _error(extras.norms[name], read(tensor).flatten()), name
    if plan.embedding is not None and extras.embedding is not None:
        assert isinstance(extras.embedding, EmbeddingExtras), "chunks are for a page arena"
        yield _embedding_error(plan.embedding, extras.embedding, read, base, draw), EMBEDDING
    if plan.head is not None and extras.head is not None:
        assert isinstance(extras.head, HeadExtras), "chunks are for a page arena"
        yield _head_error(plan.head, extras.head, spec, read, base, draw), HEAD


def _embedding_error(
    plan: EmbeddingPlan, extras: EmbeddingExtras, read: Read, base: BaseWeights, draw: torch.Generator
) -> float:
    of_base = base(EMBEDDING)
    table = of_base if plan.weight_tensor is None else read(plan.weight_tensor)
    a, b = (read(plan.a_tensor).double(), read(plan.b_tensor).double()) if plan.rank else (None, None)

    def rows(ids: Tensor) -> Tensor:
        found = table[ids].double()
        return found if a is None or b is None else found + plan.scale * (b @ a[:, ids]).T

    drawn = torch.randint(0, len(table), (_TOKENS,), generator=draw)
    ids = torch.cat([drawn, torch.tensor(plan.token_ids[:99], dtype=torch.int64)])
    want = rows(ids)
    if plan.magnitude_tensor is not None:
        squares = torch.zeros(table.shape[1], dtype=torch.float64)
        for block in torch.split(torch.arange(len(table)), _BLOCK_ROWS):
            squares += rows(block).square().sum(0)
        want = want * (read(plan.magnitude_tensor) / squares.sqrt())
    if plan.rows_tensor is not None:
        trained = read(plan.rows_tensor).double()
        place = {token: row for row, token in enumerate(plan.token_ids)}
        for at, token in enumerate(ids.tolist()):
            if token in place:
                want[at] = trained[place[token]]
    found = Adapted([ExtraRows(0, len(ids), AdapterExtras(embedding=extras))]).embed(ids, of_base)
    return _error(found, want)


def _head_error(
    plan: HeadPlan, extras: HeadExtras, spec: DecoderSpec, read: Read, base: BaseWeights, draw: torch.Generator
) -> float:
    of_base = base(HEAD)
    weight = of_base if plan.weight_tensor is None else read(plan.weight_tensor)

    def product(x: Tensor) -> Tensor:
        y = torch.cat([x @ block.double().T for block in torch.split(weight, _BLOCK_ROWS)], 1)
        if plan.rows_tensor is not None:
            y[:, list(plan.token_ids)] = x @ read(plan.rows_tensor).double().T
        return y

    x = torch.randn(_ROWS, spec.hidden, generator=draw, dtype=torch.float64)
    want = _exact(plan.module or ModulePlan(), x, product, weight, None, read)
    return _error(adapted_logits(x.float(), extras, PlainLinear(of_base.float())), want)


class _StandIn:
    """A linear method with random outputs of a given size for a base product, or a random matrix where an input has a
    gain."""

    def __init__(self, site: LoraSite, matrix: bool, size: float, bias: Tensor | None, draw: torch.Generator) -> None:
        shape = (sum(site.out_features), site.in_features if matrix else _ROWS)
        numbers = torch.randn(shape, generator=draw, dtype=torch.float64) * size
        self.bias = bias
        self._matrix = numbers / site.in_features**0.5 if matrix else None
        self._outputs = numbers.T

    def product(self, x: Tensor) -> Tensor:
        """In the type of x."""
        exact = self._outputs if self._matrix is None else x.double() @ self._matrix.T
        return exact.to(x.dtype, copy=True)

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x) if self.bias is None else self.product(x) + self.bias


def _site_errors(
    site: LoraSite,
    modules: Sequence[ModulePlan | None],
    spec: DecoderSpec,
    image: DeviceImage,
    read: Read,
    base: BaseWeights,
    draw: torch.Generator,
) -> Iterator[tuple[float, str]]:
    x = torch.randn(_ROWS, site.in_features, generator=draw, dtype=torch.float64)
    names = [module_name(site.layer, name) for name in site.slices]
    present = [module for module in modules if module is not None]
    # No larger than the deltas, which an error must not hide behind.
    deltas = [float(_delta(module, x, read).abs().mean()) for module in present if module.rank]
    size = min(filter(None, deltas), default=1.0)
    biases = [
        _bias(module, f"{name}.bias", width, base, draw, size) if spec.has_bias(slice_name) else None
        for module, name, slice_name, width in zip(modules, names, site.slices, site.out_features, strict=True)
    ]
    bias = torch.cat([part for part in biases if part is not None]).float() if biases[0] is not None else None
    method = _StandIn(site, any(m.input_gain_tensor is not None for m in present), size, bias, draw)
    want, sizes = list[Tensor](), list(site.out_features)
    column = 0
    for module, name, own_bias, width in zip(modules, names, biases, sizes, strict=True):
        columns = slice(column, column + width)
        weight = base(f"{name}.weight") if module is not None and module.magnitude_tensor else None

        def product(x: Tensor, columns: slice = columns) -> Tensor:
            return method.product(x)[:, columns]

        want.append(_exact(module or ModulePlan(), x, product, weight, own_bias, read))
        column += width

    ranked = image.site(site.layer, site.site)

    def delta(y: Tensor) -> None:
        if ranked is not None:
            b = [
                torch.zeros(image.rank, width) if part is None else part
                for part, width in zip(ranked.b, site.out_features, strict=True)
            ]
            lora_apply(y, x.float(), ranked.a.transpose(0, 1), b, route([(0, _ROWS, tuple(range(image.rank)))]))

    rows = [] if image.extras is None else [ExtraRows(0, _ROWS, image.extras)]
    found = Adapted(rows, {site.site: site.out_features}).linear(method, x.float(), site.layer, site.site, delta)
    for module, name, got, expected in zip(modules, names, torch.split(found, sizes, 1), want, strict=True):
        if module is not None:
            yield _error(got, expected), name


def _bias(
    module: ModulePlan | None, name: str, width: int, base: BaseWeights, draw: torch.Generator, size: float
) -> Tensor:
    """The base's where the adapter does something to it, else random numbers of a size."""
    if module is not None and (module.bias_tensor is not None or module.output_gain_tensor is not None):
        return base(name).double()
    return torch.randn(width, generator=draw, dtype=torch.float64) * size


def _exact(
    module: ModulePlan,
    x: Tensor,
    product: Callable[[Tensor], Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    read: Read,
) -> Tensor:
    """PEFT's maths of one linear, float64; DoRA takes its norms of ``weight``."""
    y = product(x if module.input_gain_tensor is None else x * read(module.input_gain_tensor).flatten())
    if module.rank:
        y = y + _delta(module, x, read)
        if module.magnitude_tensor is not None:
            assert weight is not None
            a, b = _factors(module, read)
            blocks = zip(torch.split(weight, _BLOCK_ROWS), torch.split(b, _BLOCK_ROWS), strict=True)
            norms = [(rows.double() + module.scale * (own @ a)).norm(dim=1) for rows, own in blocks]
            y = y * (read(module.magnitude_tensor) / torch.cat(norms))
    own_bias = bias if module.bias_tensor is None else read(module.bias_tensor)
    if own_bias is not None:
        y = y + own_bias
    if module.b_bias_tensor is not None:
        y = y + module.scale * read(module.b_bias_tensor).double()
    if module.output_gain_tensor is not None:
        y = y * read(module.output_gain_tensor).flatten()
    return y


def _factors(module: ModulePlan, read: Read) -> tuple[Tensor, Tensor]:
    a, b = read(module.a_tensor).double(), read(module.b_tensor).double()
    return (a.T, b.T) if module.transposed else (a, b)


def _delta(module: ModulePlan, x: Tensor, read: Read) -> Tensor:
    a, b = _factors(module, read)
    return module.scale * ((x @ a.T) @ b.T)


def _error(found: Tensor, want: Tensor) -> float:
    largest = float(want.abs().max())
    error = float((found.double() - want).abs().max())
    return error / largest if largest else error


__all__ = ["TOLERANCE", "probe"]
