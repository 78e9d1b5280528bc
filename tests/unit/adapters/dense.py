"""A plan applied to transformers' own model with dense matrices: the obvious meaning of every part of it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lorry.adapters.config.lora import EMBEDDING, HEAD
from lorry.adapters.plan import AdapterPlan, EmbeddingPlan, ModulePlan
from lorry.adapters.shards import WeightFiles
from lorry.layers.sites import module_name


class DenseLinear(nn.Module):
    """``y = g * (W (u * x) + scale * B (A x)) + bias``."""

    def __init__(self, weight: Tensor, bias: Tensor | None, plan: ModulePlan, files: Files) -> None:
        super().__init__()
        self.u = None if plan.input_gain_tensor is None else files(plan.input_gain_tensor).flatten()
        self.g: Tensor | float = 1.0
        self.w = weight
        self.extra = torch.zeros(weight.shape[0])
        if plan.a_tensor is not None:
            a, b = files(plan.a_tensor), files(plan.b_tensor)
            a, b = (a.T, b.T) if plan.transposed else (a, b)
            assert a.shape[0] == b.shape[1] == plan.rank
            self.delta = plan.scale * b @ a
        else:
            self.delta = torch.zeros_like(weight)
        if plan.magnitude_tensor is not None:
            self.g = files(plan.magnitude_tensor) / (weight + self.delta).norm(dim=1)
        if plan.b_bias_tensor is not None:
            self.extra = plan.scale * files(plan.b_bias_tensor)
        base_bias = torch.zeros(weight.shape[0]) if bias is None else bias
        self.bias = base_bias if plan.bias_tensor is None else files(plan.bias_tensor)
        if plan.output_gain_tensor is not None:
            self.g = files(plan.output_gain_tensor).flatten()
            self.bias = self.bias * self.g

    def forward(self, x: Tensor) -> Tensor:
        inner = x if self.u is None else x * self.u
        return self.g * (inner @ self.w.T + x @ self.delta.T + self.extra) + self.bias


class Files:
    """Tensors of an adapter's folder, float32."""

    def __init__(self, folder: Path, plan: AdapterPlan) -> None:
        with WeightFiles(folder, plan.weights) as weights:
            self._tensors = {name: torch.tensor(weights.read_tensor(name)) for name in weights.tensors}

    def __call__(self, name: str | None) -> Tensor:
        assert name is not None
        return self._tensors[name]


def dense_embedding(weight: Tensor, plan: EmbeddingPlan, files: Files) -> Tensor:
    if plan.weight_tensor is not None:
        weight = files(plan.weight_tensor)
    if plan.a_tensor is not None:
        weight = weight + plan.scale * (files(plan.b_tensor) @ files(plan.a_tensor)).T
    if plan.magnitude_tensor is not None:
        weight = weight * (files(plan.magnitude_tensor) / weight.norm(dim=0))
    weight = weight.clone()
    if plan.rows_tensor is not None:
        weight[list(plan.token_ids)] = files(plan.rows_tensor)
    return weight


def apply_plan(model: PreTrainedModel, folder: Path, plan: AdapterPlan) -> None:
    """Changes the model in place."""
    files = Files(folder, plan)
    with torch.no_grad():
        outer = {name: _weight(model.get_submodule(name)).clone() for name in (EMBEDDING, HEAD)}
        for key, module in plan.modules.items():
            _replace(model, module_name(*key), module, files)
        for name, tensor in plan.norms.items():
            model.get_submodule(name.removesuffix(".weight")).weight = nn.Parameter(files(tensor))
        if plan.embedding is not None:
            outer[EMBEDDING] = dense_embedding(outer[EMBEDDING], plan.embedding, files)
        if plan.head is not None and plan.head.weight_tensor is not None:
            outer[HEAD] = files(plan.head.weight_tensor).clone()
        if plan.head is not None and plan.head.rows_tensor is not None:
            outer[HEAD][list(plan.head.token_ids)] = files(plan.head.rows_tensor)
        for name, weight in outer.items():
            model.get_submodule(name).weight = nn.Parameter(weight)
        _replace(model, HEAD, (plan.head and plan.head.module) or ModulePlan(), files)
    model.train(False)


def _weight(module: nn.Module) -> Tensor:
    assert isinstance(module.weight, Tensor)
    return module.weight.detach()


def _replace(model: PreTrainedModel, name: str, plan: ModulePlan, files: Files) -> None:
    linear = model.get_submodule(name)
    bias = linear.bias.detach() if isinstance(linear.bias, Tensor) else None
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, DenseLinear(_weight(linear), bias, plan, files))


__all__ = ["apply_plan"]
