"""The contenders of torch_grouped_mm.py: each case's calls, its dense product, and the check of a result.

A layer has x [m, k] and weights w [g, n, k] (forward) or [g, k, n] (dgrad); its weight gradient is
dy[rows of g]^T @ x[rows of g], [g, n, k], in the operands' type (wgrad) or added to an fp32 main_grad (wgrad_f32).
"""

import torch
import torch.nn.functional as F

# case: cadre's op, named as in `cadre bench`
CASES = {"forward": "gmm_nt", "dgrad": "gmm", "wgrad": "tgmm", "wgrad_f32": "tgmm"}
SAMPLED_EXPERTS, SAMPLED_ROWS = 6, 6
# Half a unit in the last place of an output, and of the fp32 that sums are made in.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}


def _grouped_mm():
    function = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if function is None:
        raise RuntimeError(f"torch {torch.__version__} has no grouped_mm")
    return function


def calls_of(layer):
    """name -> a function that prepares the contender and returns its call."""
    if layer.case.startswith("wgrad"):
        return _gradient_calls(layer, wide=layer.case == "wgrad_f32")
    return _product_calls(layer, transposed=layer.case == "forward")


def _product_calls(layer, transposed):
    x, w, ends = layer.x, layer.w, layer.ends
    as_kn = w.transpose(1, 2) if transposed else w
    spans = list(layer.spans())

    def new_out():
        return torch.empty((layer.m, layer.n), dtype=layer.dtype, device=layer.device)

    def cadre():
        import cadre.torch

        return lambda: cadre.torch.gmm(x, w, layer.group_sizes, transpose_rhs=transposed)

    def torch_grouped():
        function = _grouped_mm()
        return lambda: function(x, as_kn, offs=ends)

    def loop():
        out = new_out()
        products = [(x[a:b], as_kn[expert], out[a:b]) for expert, a, b in spans]

        def call():
            for rows, weights, result in products:
                torch.mm(rows, weights, out=result)
            return out

        return call

    def cublas():
        from cublas_grouped import GroupedProduct

        out = new_out()
        product = GroupedProduct(
            [x[a:b] for _, a, b in spans],
            [w[expert] for expert, _, _ in spans],
            [out[a:b] for _, a, b in spans],
            transpose_b=transposed,
        )

        def call():
            product()
            return out

        return call

    def triton():
        import triton_grouped

        out = new_out()
        return lambda: triton_grouped.rows(x, w, ends, out, transposed)

    return _with_gpu_rivals(layer, cadre, torch_grouped, loop, cublas, triton)


def _gradient_calls(layer, wide):
    x, dy, ends = layer.x, layer.dy, layer.ends
    spans = list(layer.spans())
    dims = (layer.experts, layer.n, layer.k)
    empty = [expert for expert, rows in enumerate(layer.sizes) if rows == 0]

    def new_out(dtype=None):
        return torch.zeros(dims, dtype=dtype or layer.dtype, device=layer.device)

    def result_of(narrow, out):
        """What a contender without fp32 output does: the sum of its 16-bit result and main_grad."""
        return out.add_(narrow) if wide else narrow

    def cadre():
        import cadre.torch

        if not wide:
            return lambda: cadre.torch.tgmm(dy, x, layer.group_sizes)
        out = new_out(torch.float32)
        return lambda: cadre.torch.tgmm(dy, x, layer.group_sizes, out=out, accumulate=True)

    def torch_grouped():
        function = _grouped_mm()
        out = new_out(torch.float32) if wide else None
        return lambda: result_of(function(dy.t(), x, offs=ends), out)

    def loop():
        narrow = new_out()
        out = new_out(torch.float32) if wide else None
        products = [(dy[a:b].t(), x[a:b], narrow[expert]) for expert, a, b in spans]

        def call():
            for left, right, result in products:
                torch.mm(left, right, out=result)
            for expert in empty:
                narrow[expert].zero_()
            return result_of(narrow, out)

        return call

    def cublas():
        from cublas_grouped import GroupedProduct

        # Its C is of the operands' type alone.
        narrow = new_out()
        out = new_out(torch.float32) if wide else None
        product = GroupedProduct(
            [dy[a:b] for _, a, b in spans],
            [x[a:b] for _, a, b in spans],
            [narrow[expert] for expert, _, _ in spans],
            transpose_a=True,
        )

        def call():
            product()
            for expert in empty:
                narrow[expert].zero_()
            return result_of(narrow, out)

        return call

    def triton():
        import triton_grouped

        narrow = new_out()
        out = new_out(torch.float32) if wide else None
        return lambda: result_of(triton_grouped.weights(dy, x, ends, narrow), out)

    return _with_gpu_rivals(layer, cadre, torch_grouped, loop, cublas, triton)


def _with_gpu_rivals(layer, cadre, torch_grouped, loop, cublas, triton):
    calls = {"cadre": cadre, "torch grouped_mm": torch_grouped, "loop of torch.mm": loop}
    if layer.device == "cuda":
        calls |= {"cublas grouped": cublas, "triton": triton}
    return calls


def dense_of(layer):
    """One product of the same m, k and n."""
    if layer.case.startswith("wgrad"):
        out = torch.empty((layer.n, layer.k), dtype=layer.dtype, device=layer.device)
        return lambda: torch.mm(layer.dy.t(), layer.x, out=out)
    out = torch.empty((layer.m, layer.n), dtype=layer.dtype, device=layer.device)
    weights = layer.w[0].t() if layer.case == "forward" else layer.w[0]
    return lambda: torch.mm(layer.x, weights, out=out)


def worst_error(layer, call):
    """The largest error of sampled elements, in multiples of what rounding allows; infinite for anything not finite.

    The output is poisoned first: a result in a buffer of its own is overwritten with NaN and, if it was allocated for
    the call, given back, so that the next call gets the same memory. What adds to main_grad starts from zeros.
    """
    accumulates = layer.case == "wgrad_f32"
    call().fill_(0.0 if accumulates else float("nan"))
    result = call()
    if not all(
        bool(torch.isfinite(part).all()) for part in result.split(max(1, len(result) // 16))
    ):
        return float("inf")
    ratios = [
        _ratio(result[place], exact, bound)
        for place, exact, bound in layer.references(make_references)
    ]
    return max(ratios, default=float("inf"))


def _ratio(got, exact, bound):
    return float(((got.double() - exact).abs() / bound).max())


def make_references(layer):
    """(index into the result, exact values, their tolerance) of a few experts, and of every one without rows."""
    spans = list(layer.spans())
    spans = spans[:: max(1, len(spans) // SAMPLED_EXPERTS)]
    if not layer.case.startswith("wgrad"):
        return [_product_reference(layer, *span) for span in spans]
    zero = torch.zeros((), dtype=torch.float64, device=layer.device)
    empty = [(expert, zero, zero + 1e-30) for expert, rows in enumerate(layer.sizes) if rows == 0]
    return empty + [_gradient_reference(layer, *span) for span in spans]


def _tolerance(exact, magnitude, terms, dtypes):
    """`terms` roundings in fp32 on the way, and one to each of `dtypes`."""
    bound = (terms + 8) * ROUNDING[torch.float32] * magnitude
    for dtype in dtypes:
        bound = bound + ROUNDING[dtype] * exact.abs()
    return bound.clamp_min(1e-30)


def _spread(begin, end, device):
    step = max(1, (end - begin - 1) // SAMPLED_ROWS)
    return torch.tensor([*range(begin, end, step), end - 1], device=device)


def _product_reference(layer, expert, begin, end):
    rows = _spread(begin, end, layer.device)
    weights = layer.w[expert].double()
    weights = weights.t() if layer.case == "forward" else weights
    x = layer.x[rows].double()
    exact = x @ weights
    return rows, exact, _tolerance(exact, x.abs() @ weights.abs(), layer.k, [layer.dtype])


def _gradient_reference(layer, expert, begin, end):
    columns = _spread(0, layer.n, layer.device)
    dtypes = [layer.dtype] + [torch.float32] * (layer.case == "wgrad_f32")
    dy = layer.dy[begin:end][:, columns].double().t()
    x = layer.x[begin:end].double()
    exact = dy @ x
    bound = _tolerance(exact, dy.abs() @ x.abs(), end - begin, dtypes)
    return (expert, columns), exact, bound
