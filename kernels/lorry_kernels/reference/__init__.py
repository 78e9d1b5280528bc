"""The obvious loop for every op: slow, short, and what the fast paths are tested against."""

from lorry_kernels.reference.attention import kv_write_reference, paged_attention_reference
from lorry_kernels.reference.embedding import embed_reference, embedding_planes_reference, replace_rows_reference
from lorry_kernels.reference.input_gain import input_gain_reference, take_gained_reference
from lorry_kernels.reference.logprobs import logprobs_reference
from lorry_kernels.reference.lora import lora_reference
from lorry_kernels.reference.margin import sampling_margin
from lorry_kernels.reference.multi_lora import multi_lora_reference
from lorry_kernels.reference.norm import rms_norm_reference, silu_mul_reference
from lorry_kernels.reference.penalties import adjust_reference
from lorry_kernels.reference.philox import philox_4x32, uniform
from lorry_kernels.reference.rotary import rotary_reference
from lorry_kernels.reference.routing import RoutingReference, routing_reference
from lorry_kernels.reference.sampling import sample_reference

__all__ = [
    "RoutingReference",
    "adjust_reference",
    "embed_reference",
    "embedding_planes_reference",
    "input_gain_reference",
    "kv_write_reference",
    "logprobs_reference",
    "lora_reference",
    "multi_lora_reference",
    "paged_attention_reference",
    "philox_4x32",
    "replace_rows_reference",
    "rms_norm_reference",
    "rotary_reference",
    "routing_reference",
    "sample_reference",
    "sampling_margin",
    "silu_mul_reference",
    "take_gained_reference",
    "uniform",
]
