"""What a user of the PyTorch front writes, for type checkers; see numpy_program.py."""

import torch
from torch import Tensor
from typing_extensions import assert_type

import cadre.torch
import cadre.torch.compat.grouped_gemm
import cadre.torch.expert_parallel
from cadre.torch.compat import transformer_engine

x = torch.ones(6, 4)
w = torch.ones(3, 4, 5)
sizes = torch.tensor([2, 0, 4])
main_grads = [torch.zeros(4, 5), torch.zeros(4, 5), torch.zeros(4, 5)]

assert_type(cadre.torch.gmm(x, w, sizes, group_offset=torch.tensor(0)), Tensor)
assert_type(cadre.torch.gmm(x, list(w), [2, 0, 4], out_dtype=torch.float64, precision="tf32"), Tensor)
assert_type(cadre.torch.gmm(x, w, sizes, activation="silu", preactivation=True), tuple[Tensor, Tensor])
assert_type(cadre.torch.tgmm(x, x, sizes, out=main_grads, accumulate=True), list[Tensor])
assert_type(cadre.torch.bias_grad(x, sizes), Tensor)
assert_type(cadre.torch.bias_grad(x, sizes, bias=w[:, 0]), tuple[Tensor, Tensor])
assert_type(cadre.torch.grouped_mm(x, w, offs=sizes.cumsum(0)), Tensor)
product = cadre.torch.grouped_gemm(cadre.torch.GroupedTensor.list([x, w[0]]), [w[0], w[1].T])
weights, ids = cadre.torch.select_experts(torch.ones(6, 3), 2, score="sigmoid")
routing = cadre.torch.route(ids, 3)
assert_type(routing.group_sizes, Tensor)
assert_type(cadre.torch.combine(cadre.torch.permute(x, routing), routing, weights), Tensor)
w13, w2 = torch.ones(3, 10, 4), torch.ones(3, 4, 5)
assert_type(cadre.torch.moe_mlp(x, routing, weights, w13, w2, activation=torch.nn.functional.glu), Tensor)
layer = cadre.torch.GroupedMLP(3, 4, 5, activation="geglu", dtype=torch.bfloat16)
assert_type(layer.pending_wgrads, int)
linear = cadre.torch.GroupedLinear(3, 4, 5, parallel_mode="row", tp_size=2)
assert_type(linear.weights(), list[torch.nn.Parameter])
assert_type(cadre.torch.compat.grouped_gemm.ops.gmm(x, w, sizes, trans_b=False), Tensor)
assert_type(transformer_engine.moe_permute(x, ids, 0, map_type="index"), tuple[Tensor, Tensor])
spread = cadre.torch.expert_parallel.ExpertParallelMLP(8, 4, 5, exchange="capacity", capacity=4)
out = spread(x, ids, weights, shared=torch.relu)
scaled = cadre.torch.quantize(x, "row", sizes)
assert_type(cadre.torch.dequantize(scaled, sizes), Tensor)
cadre.torch.check("cuda")

cadre.torch.gmm(x, w)  # type: ignore  # no group_sizes
cadre.torch.gmm(x, w, sizes, tail="none")  # type: ignore
cadre.torch.gmm(x, w, sizes, out_dtype="float32")  # type: ignore
cadre.torch.tgmm(x, x, sizes, groups=3)  # type: ignore
cadre.torch.select_experts(weights, 2, score="relu")  # type: ignore
cadre.torch.permute(x, ids)  # type: ignore
cadre.torch.quantize(x, "rows")  # type: ignore
cadre.torch.moe_mlp(x, ids, weights, w13, w2, activation="swish")  # type: ignore
cadre.torch.GroupedMLP(3, 4, 5, activaton="geglu")  # type: ignore
cadre.torch.GroupedLinear(3, 4, 5, parallel_mode="rows")  # type: ignore
