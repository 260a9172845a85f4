"""A training step of expert layers in one CUDA graph, replayed with other group sizes each time.

The sizes are a tensor on the GPU that no op reads back, so the graph needs no recapture when the routing changes.
Without a GPU the same step runs eagerly, and only the results are shown.
"""

import cadre.torch
import torch
import torch.nn.functional as F

ROWS, DIM, HIDDEN, EXPERTS = 256, 64, 128, 4
SPLITS = [[64, 64, 64, 64], [256, 0, 0, 0], [1, 100, 0, 99], [0, 0, 0, 0]]


class Experts(torch.nn.Module):
    """Weight gradients are added to one f32 main_grad for each expert, as a distributed optimizer wants them."""

    def __init__(self, device):
        super().__init__()
        options = {
            "device": device,
            "params_dtype": torch.bfloat16,
            "fuse_wgrad_accumulation": True,
            "bias": False,
        }
        self.up = cadre.torch.GroupedLinear(EXPERTS, DIM, HIDDEN, **options)
        self.down = cadre.torch.GroupedLinear(EXPERTS, HIDDEN, DIM, **options)
        for parameter in self.parameters():
            parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)

    def forward(self, x, sizes):
        return self.down(F.silu(self.up(x, sizes)), sizes)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    experts = Experts(device)
    x = torch.randn(ROWS, DIM, device=device).bfloat16()
    dy = torch.randn(ROWS, DIM, device=device).bfloat16()
    sizes = torch.tensor(SPLITS[0], device=device)

    def step():
        y = experts(x, sizes)
        y.backward(dy)
        return y

    replay = step
    if device == "cuda":
        warm_up = torch.cuda.Stream()
        with torch.cuda.stream(warm_up):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()

        def replay():
            graph.replay()
            return captured

    for splits in SPLITS:
        sizes.copy_(torch.tensor(splits))
        for parameter in experts.parameters():
            parameter.main_grad.zero_()
        y = replay()
        used = [i for i, parameter in enumerate(experts.up.weights()) if parameter.main_grad.any()]
        expected = [i for i, size in enumerate(splits) if size]
        print(f"sizes {splits}: {int(y.any(dim=1).sum())} rows, gradients of experts {used}")
        assert used == expected
        assert not y[sum(splits) :].any()


if __name__ == "__main__":
    main()
