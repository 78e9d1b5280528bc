"""The obvious loop for every op: slow, short, and what the fast paths are tested against."""

from lorry_kernels.reference.attention import paged_attention_reference
from lorry_kernels.reference.logprobs import logprobs_reference
from lorry_kernels.reference.lora import lora_reference
from lorry_kernels.reference.penalties import adjust_reference
from lorry_kernels.reference.philox import philox_4x32, uniform
from lorry_kernels.reference.rotary import rotary_reference
from lorry_kernels.reference.sampling import sample_reference

__all__ = [
    "adjust_reference",
    "logprobs_reference",
    "lora_reference",
    "paged_attention_reference",
    "philox_4x32",
    "rotary_reference",
    "sample_reference",
    "uniform",
]
