"""Base models, prepared."""

from __future__ import annotations

from lorry.api.v1 import tenant_admin_pb2 as pb
from lorry.client.admin.names import new_request_id
from lorry.client.prepared import PAGE_SIZE, TENANTS, Paged, Unary


def create_base(
    name: str, base_sha256: str, tokenizer_sha256: str, context_tokens: int, config_json: str
) -> Unary[pb.BaseModel]:
    """Registers a base by what its engine states; ``name`` is the `{base}` of `models/{base}`."""
    request = pb.CreateBaseModelRequest(
        base_model_id=name,
        base_sha256=base_sha256,
        tokenizer_sha256=tokenizer_sha256,
        context_tokens=context_tokens,
        config_json=config_json,
        request_id=new_request_id(),
    )
    return TENANTS.unary("CreateBaseModel", request, pb.BaseModel)


def get_base(name: str) -> Unary[pb.BaseModel]:
    """``name``: `models/{base}`."""
    return TENANTS.unary("GetBaseModel", pb.GetBaseModelRequest(name=name), pb.BaseModel)


def list_bases() -> Paged[pb.BaseModel]:
    """All, by name."""
    request = pb.ListBaseModelsRequest(page_size=PAGE_SIZE)
    return TENANTS.paged("ListBaseModels", request, pb.ListBaseModelsResponse, lambda page: page.base_models)


__all__ = ["create_base", "get_base", "list_bases"]
