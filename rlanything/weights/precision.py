"""What `dtype: auto` means: bfloat16 if the hardware multiplies it, else float32.

A CPU without bfloat16 instructions emulates them: one with AVX2 alone takes 60 times as long as in float32.
"""

from __future__ import annotations

import torch

NATIVE = ("avx512_bf16", "amx_bf16", "bf16")  # bfloat16's names in torch.cpu.get_capabilities(): x86, x86, ARM


def multiplies_bfloat16(on_accelerator: bool) -> bool:
    """Whether this machine's CPU, or its accelerator, multiplies bfloat16.

    A machine without an accelerator assumes it of the accelerators of others: it may only be planning a run.
    """
    if on_accelerator:
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in NATIVE)


def resolve_dtype(dtype: str, on_accelerator: bool) -> str:
    """`dtype`, or "bfloat16" or "float32" if it is "auto"."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if multiplies_bfloat16(on_accelerator) else "float32"


def torch_dtype(dtype: str, on_accelerator: bool) -> torch.dtype:
    """`resolve_dtype` as a torch dtype."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[resolve_dtype(dtype, on_accelerator)]
