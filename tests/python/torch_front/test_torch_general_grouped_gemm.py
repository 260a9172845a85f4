"""Transformer Engine's grouped products over cadre: every layout and kind of operand against the f64 product of the values."""

import doctest

import cadre.torch
import pytest
import torch
from cadre.torch import GroupedTensor, ScaledTensor, quantize
from cadre.torch.compat.transformer_engine import (
    general_grouped_gemm,
    general_grouped_gemm_for_grouped_tensor,
)
from torch_oracle import as_numpy, assert_close, random

SIZES = [3, 0, 129, 1, 33]
M, N, K, GROUPS = sum(SIZES), 75, 140, len(SIZES)
MODES = ("tensor", "row", "block_128", "mx")
LAYOUTS = ("TN", "NN", "NT")
#: The first operand's and the second's matrices, and the result's.
SHAPES = {
    "TN": lambda m: ((N, K), (m, K), (m, N)),
    "NN": lambda m: ((N, K), (m, N), (m, K)),
    "NT": lambda m: ((m, K), (m, N), (N, K)),
}


def made(layout, device, dtype=torch.bfloat16):
    """Lists (A, B, out), of which A and B are views of one tensor each as torch.split leaves them."""
    shapes = [SHAPES[layout](size) for size in SIZES]
    parts = []
    for each in zip(*shapes):
        whole = random(sum(rows for rows, _ in each), each[0][1], dtype=dtype, device=device)
        parts.append(list(whole.split([rows for rows, _ in each])))
    return parts


def expected_of(layout, A, B, out=None, bias=None, bias_scale=None, alpha=1.0, beta=1.0):
    """[(value, sum of magnitudes, terms)] in f64. `out`: what it held, times beta."""
    results = []
    for i in range(GROUPS):
        a, b = as_numpy(A[i]), as_numpy(B[i])
        a, b = a.T if layout[0] == "T" else a, b.T if layout[1] == "T" else b
        value, size = alpha * (b @ a), abs(alpha) * (abs(b) @ abs(a))
        if bias is not None:
            scale = 1.0 if bias_scale is None else as_numpy(bias_scale[i])[:, None]
            value, size = value + scale * as_numpy(bias[i]), size + abs(scale * as_numpy(bias[i]))
        if out is not None:
            value, size = value + beta * as_numpy(out[i]), size + abs(beta * as_numpy(out[i]))
        results.append((value, size, b.shape[1] + 2))
    return results


def check(results, expected):
    assert len(results) == len(expected) == GROUPS
    for actual, (value, size, terms) in zip(results, expected, strict=True):
        assert_close(actual, value, size, terms)


def poisoned(tensors, accumulate):
    return [each.clone() if accumulate else torch.full_like(each, float("nan")) for each in tensors]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("single_output", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lists_of_matrices(device, layout, single_output, accumulate):
    A, B, old = made(layout, device)
    out = poisoned(old, accumulate)
    given = [torch.cat(out)] if single_output else out
    splits = None if layout == "NT" else SIZES
    options = {"layout": layout, "accumulate": accumulate, "single_output": single_output, "m_splits": splits}
    result, bias, gelu_input = general_grouped_gemm(A, B, given, [None] * GROUPS, torch.bfloat16, **options)
    assert result is given and len(bias) == len(gelu_input) == GROUPS
    results = given[0].split([each.shape[0] for each in out]) if single_output else out
    check(results, expected_of(layout, A, B, old if accumulate else None))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_bias_is_added_to_rows_wherever_they_lie(device, apart, accumulate):
    A, B, old = made("TN", device)
    if apart:
        B = [each.clone() for each in B]
    bias = list(random(GROUPS, N, dtype=torch.bfloat16, device=device))
    out = [torch.cat(poisoned(old, accumulate))]
    options = {"use_bias": True, "accumulate": accumulate}
    _, same, _ = general_grouped_gemm(A, B, out, None, None, bias=bias, single_output=True, **options)
    assert same is bias
    expected = expected_of("TN", A, B, old if accumulate else None, bias)
    check(out[0].split(SIZES), expected)
    lists = poisoned(old, accumulate)
    general_grouped_gemm(A, B, lists, None, None, bias=bias, **options)
    check(lists, expected)
    kept = [each.clone() for each in lists]
    general_grouped_gemm(A, B, lists, None, None, bias=bias)  # without use_bias
    check(lists, expected_of("TN", A, B))
    assert not torch.equal(torch.cat(kept), torch.cat(lists))


def test_weight_gradients_come_with_those_of_the_bias(device):
    A, B, _ = made("NT", device)
    main_grads = [torch.ones(N, K, device=device) for _ in SIZES]
    before = [each.clone() for each in main_grads]
    # As GroupedLinear calls it: out is f32, whatever out_dtype says.
    _, dbias, _ = general_grouped_gemm(
        A, B, main_grads, [None] * GROUPS, torch.bfloat16, layout="NT", grad=True, accumulate=True, use_bias=True
    )
    check(main_grads, expected_of("NT", A, B, before))
    for actual, b in zip(dbias, B, strict=True):
        assert actual.dtype == torch.float32
        assert_close(actual, as_numpy(b).sum(0), abs(as_numpy(b)).sum(0), b.shape[0])


def test_matrices_of_any_shape(device):
    A = [random(*shape, device=device) for shape in ((7, 4), (2, 9), (3, 0))]
    B = [random(*shape, device=device) for shape in ((5, 4), (1, 9), (2, 0))]
    out = [random(b.shape[0], a.shape[0], device=device) for a, b in zip(A, B)]
    general_grouped_gemm(A, B, out, None, None)
    for actual, a, b in zip(out, A, B):
        assert_close(actual, as_numpy(b) @ as_numpy(a).T, abs(as_numpy(b)) @ abs(as_numpy(a)).T, 9)


def grouped(layout, tensors, device, operand):
    """The GroupedTensor that Transformer Engine's tests would make: rows in groups, or a stack."""
    rows = operand == "B" or (layout == "NT") == (operand == "A")
    if not rows:
        return GroupedTensor.stacked(torch.stack(list(tensors)))
    return GroupedTensor.of_rows(torch.cat(list(tensors)), torch.tensor(SIZES, device=device))


def parts_of(result):
    if isinstance(result, list):
        return result
    rows = result.as_rows()
    return list(result.tensors[0].unbind(0)) if rows is None else list(rows[0].split(SIZES))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("case", ["no_discrete", "discrete_in", "discrete_out"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_grouped_tensors(device, layout, case, accumulate):
    A, B, old = made(layout, device)
    out = poisoned(old, accumulate)
    target = out if case == "discrete_out" else grouped(layout, out, device, "out")
    first = A if case == "discrete_in" else grouped(layout, A, device, "A")
    second = grouped(layout, B, device, "B")
    options = {"layout": layout, "accumulate": accumulate}
    result = general_grouped_gemm_for_grouped_tensor(first, second, target, **options)
    assert result is target
    check(parts_of(result), expected_of(layout, A, B, old if accumulate else None))


@pytest.mark.parametrize("form", ["stack of rows", "stack", "list"])
@pytest.mark.parametrize("layout", ["TN", "NN"])
def test_bias_with_scales_and_scalars(device, layout, form):
    A, B, old = made(layout, device, torch.float32)
    width = old[0].shape[1]
    alpha, beta = torch.tensor([0.5], device=device), torch.linspace(-1, 1, GROUPS, device=device)
    bias = random(GROUPS, width, dtype=torch.float32, device=device)
    bias_scale = random(M, dtype=torch.float32, device=device)
    forms = {"stack of rows": lambda: GroupedTensor.stacked(bias[:, None]), "stack": lambda: bias, "list": lambda: list(bias)}
    target = grouped(layout, old, device, "out")
    general_grouped_gemm_for_grouped_tensor(
        grouped(layout, A, device, "A"),
        grouped(layout, B, device, "B"),
        target,
        layout=layout,
        bias=forms[form](),
        bias_scale=bias_scale,
        alpha=alpha,
        beta=beta,
    )
    for i, (actual, old_part) in enumerate(zip(parts_of(target), old, strict=True)):
        scale = list(bias_scale.split(SIZES))
        expected = expected_of(layout, A, B, old, bias, scale, alpha=0.5, beta=float(beta[i]))
        assert_close(actual, *expected[i])
        assert old_part.shape == actual.shape


def fp8_values(grouped_tensor):
    """The f64 values of a quantised one's row-wise data, group by group."""
    rows = grouped_tensor.as_rows()
    if rows is not None:
        return list(cadre.torch.dequantize(rows[0], rows[1], out_dtype=torch.float32).split(SIZES))
    stack = ScaledTensor(grouped_tensor.tensors[0], grouped_tensor.scales, grouped_tensor.mode)
    return list(cadre.torch.dequantize(stack, out_dtype=torch.float32).unbind(0))


def copied_values(grouped_tensor):
    """The same of the column-wise copy."""
    copies = grouped_tensor.columns
    if not copies.columns:
        return list(cadre.torch.dequantize(copies, out_dtype=torch.float32).mT.unbind(0))
    values = cadre.torch.dequantize(copies, SIZES, num_rows=M, out_dtype=torch.float32)
    return list(values.split(SIZES))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantised_grouped_tensors_are_multiplied_along_the_dim_that_is_summed(device, layout, mode):
    A, B, old = made(layout, device)
    first, second = (
        grouped(layout, each, device, name).quantize(mode, columns=True) for name, each in (("A", A), ("B", B))
    )
    target = grouped(layout, poisoned(old, False), device, "out")
    general_grouped_gemm_for_grouped_tensor(first, second, target, layout=layout)
    values = [
        fp8_values(each) if along_last else copied_values(each)
        for each, along_last in ((first, layout[0] == "T"), (second, layout[1] == "N"))
    ]
    check(parts_of(target), expected_of(layout, *values))


@pytest.mark.parametrize("mode", MODES)
def test_columns_alone_make_weight_gradients(device, mode):
    A, B, old = made("NT", device)
    first, second = (
        grouped("NT", each, device, name).quantize(mode, rows=False, columns=True)
        for name, each in (("A", A), ("B", B))
    )
    assert first.device.type == device and "columns alone" in repr(first)
    main_grads = [torch.full((N, K), 0.5, device=device) for _ in SIZES]
    before = [each.clone() for each in main_grads]
    general_grouped_gemm_for_grouped_tensor(first, second, main_grads, layout="NT", accumulate=True)
    check(main_grads, expected_of("NT", copied_values(first), copied_values(second), before))
    with pytest.raises(ValueError, match=r"B\.tensors = None, expected row-wise data, because there are columns alone"):
        general_grouped_gemm_for_grouped_tensor(
            torch.zeros(GROUPS, N, K, device=device).unbind(0), first, old, layout="TN"
        )


@pytest.mark.parametrize("mode", ["block_128", "tensor"])
def test_squares_and_single_scales_serve_both_dims(device, mode):
    A, B, old = made("NN", device)
    first = grouped("NN", A, device, "A").quantize(mode)
    second = grouped("NN", B, device, "B").quantize(mode)
    target = grouped("NN", poisoned(old, False), device, "out")
    general_grouped_gemm_for_grouped_tensor(first, second, target, layout="NN")
    check(parts_of(target), expected_of("NN", fp8_values(first), fp8_values(second)))


@pytest.mark.parametrize("mode", MODES)
def test_lists_of_scaled_tensors(device, mode):
    """Each matrix quantised by itself, as Transformer Engine's split_quantize leaves them."""
    A, B, old = made("TN", device)
    stack = quantize(torch.stack(A), mode)
    scales = stack.scales[:, None] if mode == "tensor" else stack.scales
    weights = [ScaledTensor(data, scale, mode) for data, scale in zip(stack.data, scales)]
    pairs = [quantize(each, mode, columns=True) for each in B]
    rows = [pair[0] for pair in pairs]
    values = [cadre.torch.dequantize(each, out_dtype=torch.float32) for each in rows]
    weight_values = cadre.torch.dequantize(stack, out_dtype=torch.float32).unbind(0)
    out = poisoned(old, False)
    bias = list(random(GROUPS, N, dtype=torch.bfloat16, device=device))
    general_grouped_gemm(weights, rows, out, None, None, bias=bias, use_bias=True)
    check(out, expected_of("TN", weight_values, values, bias=bias))

    dy = [quantize(each, mode, rows=False, columns=True, dtype=torch.float8_e5m2) for each in old]
    main_grads = [torch.zeros(N, K, device=device) for _ in SIZES]
    copies = [pair[1] for pair in pairs]
    options = {"layout": "NT", "grad": True, "m_splits": SIZES}
    general_grouped_gemm(copies, dy, main_grads, None, None, **options)
    sides = [
        [cadre.torch.dequantize(one, num_rows=size, out_dtype=torch.float32) for one, size in zip(side, SIZES)]
        for side in (copies, dy)
    ]
    check(main_grads, expected_of("NT", *sides))


def test_a_list_of_weights_is_quantised_matrix_by_matrix(device):
    A, _, _ = made("TN", device)
    stack = GroupedTensor.stacked(torch.stack(A)).quantize("row", columns=True)
    listed = GroupedTensor.list(A).quantize("row", columns=True)
    for one, other in ((stack.tensors[0], listed.tensors), (stack.columns.data, listed.columns.data)):
        assert torch.equal(one.view(torch.uint8), torch.stack(list(other)).view(torch.uint8))
    x = grouped("TN", [random(size, K, dtype=torch.float32, device=device) for size in SIZES], device, "B").quantize("row")
    outs = [grouped("TN", [torch.empty(size, N, device=device) for size in SIZES], device, "out") for _ in range(2)]
    for weights, out in zip((stack, listed), outs):
        general_grouped_gemm_for_grouped_tensor(weights, x, out)
    assert torch.equal(outs[0].tensors[0], outs[1].tensors[0])


def test_rows_behind_the_last_group_stay(device):
    x = GroupedTensor.of_rows(random(9, 4, device=device), torch.tensor([2, 3], device=device))
    y = torch.full((9, 6), 7.0, device=device, dtype=torch.float64)
    out = GroupedTensor.of_rows(y, torch.tensor([2, 3], device=device))
    general_grouped_gemm_for_grouped_tensor(list(random(2, 6, 4, device=device)), x, out)
    assert (y[5:] == 7).all() and not (y[:5] == 7).any()


def matrices(*shapes):
    return [torch.ones(shape) for shape in shapes]


def listed(**changes):
    """A good call of general_grouped_gemm, with changes."""
    given = {
        "A": matrices((6, 4), (6, 4)),
        "B": matrices((2, 4), (3, 4)),
        "out": matrices((2, 6), (3, 6)),
        "quantization_params": [None, None],
        "out_dtype": torch.float32,
    }
    return lambda: general_grouped_gemm(**{**given, **changes})


def of_groups(*, mode=None, columns=False, **changes):
    given = {
        "A": GroupedTensor.stacked(torch.ones(2, 6, 4)),
        "B": GroupedTensor.of_rows(torch.ones(5, 4), [2, 3]),
        "out": GroupedTensor.of_rows(torch.ones(5, 6), [2, 3]),
    }
    if mode:
        given = {name: each.quantize(mode, columns=columns) if name != "out" else each for name, each in given.items()}
    given.update(changes)
    operands = given.pop("A"), given.pop("B"), given.pop("out")
    return lambda: general_grouped_gemm_for_grouped_tensor(*operands, **given)


SCALED = ScaledTensor(torch.ones(2, 4).to(torch.float8_e4m3fn), torch.ones(2), "row")
COPY = quantize(torch.ones(2, 4), "row", rows=False, columns=True)
NT = {"layout": "NT", "out": matrices((6, 4), (6, 4))}
DY = GroupedTensor.of_rows(torch.ones(5, 6), [2, 3])
X = GroupedTensor.of_rows(torch.ones(5, 4), [2, 3])

BAD_INPUT = {
    "layout": (listed(layout="TT"), ValueError, "layout = 'TT', expected 'TN' or 'NN' or 'NT'"),
    "gelu": (listed(gelu=True), NotImplementedError, "gelu = True, expected False"),
    "quantizer": (listed(quantization_params=[None, object()]), ValueError, r"quantization_params\[1\] = object, expected None"),
    "D_dtype": (listed(D_dtype=torch.bfloat16), ValueError, "D_dtype = torch.bfloat16, expected None or out"),
    "A is a tensor": (listed(A=torch.ones(2, 6, 4)), TypeError, "A is a Tensor, expected a list"),
    "fewer B": (listed(B=matrices((2, 4))), ValueError, "num_groups of A = 2, expected that of B = 1"),
    "fewer out": (listed(out=matrices((2, 6))), ValueError, r"len\(out\) = 1, expected len\(B\) = 2"),
    "out is no list": (listed(out=torch.ones(5, 6)), TypeError, "out is a Tensor, expected a list of tensors"),
    "fewer splits": (listed(m_splits=[5]), ValueError, r"len\(m_splits\) = 1, expected len\(B\) = 2"),
    "other splits": (listed(m_splits=[3, 2]), ValueError, r"m_splits\[0\] = 3, expected B\[0\].shape\[0\] = 2"),
    "another k": (listed(A=matrices((6, 5), (6, 5))), ValueError, r"A\[0\]\.k = 5, expected B\[0\]\.k = 4"),
    "no bias": (listed(use_bias=True), ValueError, "bias = None, expected one for each product, because use_bias = True"),
    "out of another shape": (listed(out=matrices((2, 6), (3, 7))), ValueError, r"out\[1\]\.n = 7"),
    "two single outputs": (listed(single_output=True), ValueError, "out = 2 tensors, expected one contiguous tensor"),
    "a small single output": (
        listed(single_output=True, out=matrices((4, 6))),
        ValueError,
        r"out\[0\]\.shape = \[4, 6\], expected room for 30 elements",
    ),
    "a gradient": (listed(A=[torch.ones(6, 4).requires_grad_()] * 2), ValueError, r"A\.requires_grad = True, expected False"),
    "FP8 beside others": (listed(B=[SCALED, torch.ones(3, 4)]), TypeError, r"B\[1\] is a Tensor, expected a ScaledTensor"),
    "two modes": (
        listed(B=[SCALED, ScaledTensor(SCALED.data, torch.ones(1), "tensor")]),
        ValueError,
        r"B\[1\]\.mode = 'tensor', expected B\[0\]\.mode = 'row'",
    ),
    "a copy beside rows": (listed(B=[SCALED, COPY]), ValueError, r"B\[1\]\.columns = True, expected B\[0\]\.columns = False"),
    "copies without splits": (
        listed(A=[COPY, COPY], B=[COPY, COPY], layout="NT"),
        ValueError,
        "m_splits = None, expected the rows of each group, because A holds column-wise copies",
    ),
    "copies that are too short": (
        listed(A=[COPY, COPY], B=[COPY, COPY], layout="NT", m_splits=[2, 40]),
        ValueError,
        r"A\[1\]\.data\.shape\[1\] = 32, expected 64 or more for m_splits\[1\] = 40",
    ),
    "sums of FP8 rows": (
        listed(**{**NT, "A": [COPY] * 2, "B": [COPY] * 2, "out": matrices((4, 4), (4, 4))}, m_splits=[2, 2], grad=True, use_bias=True),
        ValueError,
        "use_bias = True, expected False with grad, because B is FP8",
    ),
    "FP8 against f32": (listed(B=[SCALED, SCALED], out=matrices((2, 6), (2, 6))), (TypeError, ValueError), r"A\.dtype = torch.float32"),
    "grad": (of_groups(grad=True), NotImplementedError, "grad = True, expected False"),
    "B is a list": (of_groups(B=matrices((2, 4), (3, 4))), TypeError, "B is a list, expected a GroupedTensor"),
    "bias_scale alone": (of_groups(bias_scale=torch.ones(5)), ValueError, "bias = None, expected a tensor, because bias_scale"),
    "bias of NT": (
        of_groups(**NT, A=X, B=DY, bias=torch.ones(2, 4)),
        ValueError,
        "bias = given, expected None unless B is made by GroupedTensor.of_rows",
    ),
    "alpha of another length": (of_groups(alpha=torch.ones(3)), ValueError, r"alpha.shape = \[3\], expected \[1\] or \[2\]"),
    "beta is a number": (of_groups(beta=1.0), TypeError, "beta is a float, expected a torch.Tensor"),
    "bias of another shape": (of_groups(bias=torch.ones(2, 5)), ValueError, r"bias\.n = 5|bias\.shape"),
    "FP8 out": (
        of_groups(out=GroupedTensor.of_rows(torch.ones(5, 6), [2, 3]).quantize("row")),
        ValueError,
        "out.mode = 'row', expected None: results are not quantised",
    ),
    "no columns of weights": (
        of_groups(mode="row", layout="NN", B=DY.quantize("row"), out=X),
        ValueError,
        "A.columns = None, expected column-wise data for the input's gradient, because A is quantised with mode = row",
    ),
    "no columns of rows": (
        of_groups(**NT, A=X.quantize("block_128"), B=DY.quantize("block_128", columns=True)),
        ValueError,
        "A.columns = None, expected the column-wise copy, because layout = 'NT' sums over rows and A.mode = 'block_128'",
    ),
    "mixed modes": (
        of_groups(mode="row", B=X.quantize("block_128")),
        ValueError,
        "A.scales.mode = row, expected block_128 because B.scales.mode = block_128",
    ),
    "no columns of a stack": (
        of_groups(
            layout="NN",
            A=GroupedTensor.stacked(torch.ones(2, 6, 4)).quantize("mx"),
            B=GroupedTensor.stacked(torch.ones(2, 3, 6)).quantize("mx"),
            out=GroupedTensor.stacked(torch.ones(2, 3, 4)),
        ),
        ValueError,
        "A.columns = None, expected column-wise data of matrices, because a first dim is summed over and A.mode = 'mx'",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_named(name):
    call, kind, message = BAD_INPUT[name]
    with pytest.raises(kind, match=message) as raised:
        call()
    assert str(raised.value).startswith("general_grouped_gemm"), str(raised.value)


def test_other_messages_of_grouped_tensors():
    with pytest.raises(ValueError, match=r"GroupedTensor.of_rows: x.strides = \[1, 4\], expected \[5, 1\]"):
        GroupedTensor.of_rows(torch.ones(5, 4).t(), [4])
    with pytest.raises(ValueError, match="GroupedTensor.quantize: placement = packed, expected"):
        GroupedTensor.packed(torch.ones(8), [2, 1], [3, 2]).quantize("row")
    with pytest.raises(ValueError, match="GroupedTensor.of_columns: columns.columns = False, expected True"):
        GroupedTensor.of_columns(SCALED, [2])
    with pytest.raises(ValueError, match="grouped_gemm: a.tensors = None, expected row-wise data"):
        cadre.torch.grouped_gemm(GroupedTensor.of_columns(COPY, [2]), torch.ones(1, 4, 5))


@pytest.mark.gpu
def test_sizes_on_a_device_are_not_read_for_a_list_of_results():
    x = GroupedTensor.of_rows(torch.ones(5, 4, device="cuda"), torch.tensor([2, 3], device="cuda"))
    weights = torch.ones(2, 6, 4, device="cuda").unbind(0)
    apart = [torch.empty(3, 6, device="cuda")[:2], torch.empty(3, 6, device="cuda")]
    with pytest.raises(ValueError, match="out = matrices that lie apart, expected one matrix"):
        general_grouped_gemm_for_grouped_tensor(weights, x, apart, bias=torch.ones(2, 6, device="cuda"))


@pytest.mark.parametrize("shown", [GroupedTensor, general_grouped_gemm, general_grouped_gemm_for_grouped_tensor])
def test_examples_are_true(shown):
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    tests = doctest.DocTestFinder().find(shown, globs={"torch": torch, "cadre": cadre})
    for test in tests:
        runner.run(test)
    assert runner.tries > 0 and runner.failures == 0
