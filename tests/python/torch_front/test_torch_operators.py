"""torch.library.opcheck on every operator: schema, autograd registration, fake results, AOT dispatch with dynamic shapes."""

import cadre.torch  # noqa: F401 (loads the operators)
import pytest
import torch
from cadre import _structs
from torch.library import opcheck
from torch_oracle import random

SIZES = torch.tensor([3, 0, 4])
M, K, N, G = 9, 3, 5, 3


def wanted(*shape):
    return random(*shape, requires_grad=True)


def lists(*shape):
    return [wanted(*shape) for _ in range(G)]


def operand(tensors):
    return tensors, None, None, None, [_structs.STACKED, *tensors[0].shape]


EPILOGUE = (None, 0, True, 1.0, 0, 0, None)
NO_OPERAND = ([], None, None, None, [0])
PACKED_SIZES = torch.tensor([2, 3])

CALLS = {
    "gmm": lambda: (
        wanted(M, K),
        wanted(G, N, K),
        SIZES,
        wanted(G),
        wanted(G, N),
        wanted(M),
        wanted(M),
        *EPILOGUE,
    ),
    "gmm_list": lambda: (
        wanted(M, K),
        lists(N, K),
        SIZES,
        wanted(G),
        lists(N),
        wanted(M),
        wanted(M),
        *EPILOGUE,
    ),
    "gmm_out": lambda: (
        *(random(M, K), [random(G, K, N)], SIZES, None, [], None, None, None, 0, False, 1.0, 0, 0),
        *([random(M, N)], None, 0.5, False, False, [random(M, N)]),
    ),
    "tgmm": lambda: (wanted(M, K), wanted(M, N), SIZES, wanted(G), None, 0, G, 1.0, 0, None),
    # Only ever called below autograd.
    "gmm_plain": lambda: (random(M, K), random(G, N, K), SIZES, True),
    "tgmm_plain": lambda: (random(M, K), random(M, N), SIZES, G),
    "tgmm_out": lambda: (
        *(random(M, K), random(M, N), SIZES, None, None, 0, 1.0, 0, [], None, 1.0),
        [random(K, N) for _ in range(G)],
    ),
    "bias_grad": lambda: (wanted(M, N), SIZES, wanted(M), None, 0, G, None),
    "bias_grad_out": lambda: (random(M, N), SIZES, random(M), None, 0, True, [random(G, N)]),
    "bias_scale_grad": lambda: (wanted(M, N), lists(N), SIZES, None, 0, None),
    "grouped_gemm": lambda: (
        *(
            [
                wanted(6),
            ],
            PACKED_SIZES,
            None,
            None,
            [_structs.PACKED, 2, -1, 1, 0, 0, 6],
        ),
        *([wanted(2, 1, N)], None, None, None, [_structs.STACKED, 2, 1, N]),
        *NO_OPERAND,
        *(PACKED_SIZES, None, None, [_structs.PACKED, 2, -1, N, 0, 0, 5 * N]),
        *(wanted(2), None, 1.0, 0.0, False, False, 0, torch.float64),
    ),
    "grouped_gemm_out": lambda: (
        *operand([random(G, 2, K)]),
        *operand([random(G, K, N)]),
        *NO_OPERAND,
        *operand([random(G, 2, N)])[1:],
        *(None, None, 1.0, 1.0, False, False, 0, [random(G, 2, N)]),
    ),
    "check": lambda: (random(1),),
}


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name):
    opcheck(getattr(torch.ops.cadre, name).default, CALLS[name]())


def test_every_operator_is_checked():
    prefix = "cadre::"
    names = {
        schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith(prefix)
    }
    assert {name.removeprefix(prefix) for name in names} == set(CALLS)
