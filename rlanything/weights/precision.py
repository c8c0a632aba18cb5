"""Which precision `dtype: auto` means: bfloat16 where the hardware multiplies it, else float32.

A CPU without such instructions emulates bfloat16: on one with AVX2 alone at a sixtieth of its speed in float32.
"""

from __future__ import annotations

import torch

NATIVE = ("avx512_bf16", "amx_bf16", "bf16")  # what torch.cpu.get_capabilities() calls it (x86, x86, ARM)


def multiplies_bfloat16(on_accelerator: bool) -> bool:
    """Whether this machine's CPU, or its accelerator, does. Of an accelerator that is elsewhere, as where a run is only
    planned, it is believed."""
    if on_accelerator:
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in NATIVE)


def resolve_dtype(dtype: str, on_accelerator: bool) -> str:
    """`dtype` itself, or "bfloat16" or "float32" where it is "auto"."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if multiplies_bfloat16(on_accelerator) else "float32"


def torch_dtype(dtype: str, on_accelerator: bool) -> torch.dtype:
    """The same as torch names it."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[resolve_dtype(dtype, on_accelerator)]
