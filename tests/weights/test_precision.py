"""`dtype: auto` never makes a CPU emulate bfloat16."""

import pytest
import torch

from rlanything.weights.precision import resolve_dtype, torch_dtype


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [({"avx2": True, "avx512_bf16": False}, "float32"), ({"avx512_bf16": True}, "bfloat16"), ({}, "float32")],
)
def test_auto_is_bfloat16_only_if_the_cpu_multiplies_it(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert resolve_dtype("auto", on_accelerator=False) == expected
    assert resolve_dtype("auto", on_accelerator=True) == "bfloat16"  # assumed of another machine


@pytest.mark.parametrize(("native", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_bfloat16_only_if_the_accelerator_multiplies_it(monkeypatch, native, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    assert resolve_dtype("auto", on_accelerator=True) == expected


def test_an_explicit_dtype_is_kept(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert torch_dtype("bfloat16", on_accelerator=False) is torch.bfloat16
    assert torch_dtype("float32", on_accelerator=True) is torch.float32
