#!/usr/bin/env python3
"""Times quantize on a GPU, beside a copy of as many bytes. Codes and scales are checked first.

usage: python bench/quantize.py build/cuda/libcadre.so [OUT.json]

Activations [m, k] of bf16 become e4m3 in both arrangements, with sizes on the device. Each mode runs in a loop of its
own (20 calls, then 200 timed ones) over as many inputs and outputs as exceed L2. Bytes are those of the input, the
codes and the scales, once each; `tensor` and `row` read the input twice, which isn't counted. The share is that of a
copy's bandwidth.
"""

import ctypes
import json
import shlex
import sys
from pathlib import Path

import torch


LAYERS = {  # rows of all experts, experts, width of the layer, width of an expert
    "qwen3-30b": (65536, 128, 2048, 768),
    "qwen3-235b": (65536, 128, 4096, 1536),
    "mixtral-8x7b": (16384, 8, 4096, 14336),
    "gpt-oss-120b": (32768, 128, 2880, 2880),
}
BEYOND_L2 = 256 << 20
MODES = {"tensor": 1, "row": 2, "block_128": 3, "mx": 4}
BLOCKS = {"block_128": 128, "mx": 32}


def structs():
    """cadre._structs without the rest of the package, which would load the library that is installed."""
    import importlib.util

    path = Path(__file__).resolve().parents[1] / "bindings/python/cadre/_structs.py"
    spec = importlib.util.spec_from_file_location("cadre_structs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


S = structs()
CODES = {torch.float32: S.F32, torch.bfloat16: S.BF16, torch.int32: S.I32}


def view(tensor, code=None):
    result = S.Tensor(tensor.data_ptr(), code or CODES[tensor.dtype], S.Device(S.CUDA, 0), tensor.dim())
    result.shape[: tensor.dim()] = tensor.shape
    result.strides[: tensor.dim()] = tensor.stride()
    return result


def blocks(m, groups, block):
    """How many blocks m rows may need: each group that has rows begins with a new one."""
    return (m + min(m, groups) * (block - 1)) // block


def rounded_up(scale):
    """To a power of two."""
    fraction, exponent = torch.frexp(scale)
    return torch.ldexp(torch.ones_like(scale), exponent - (fraction == 0.5).int())


class Case:
    """One input and its two copies."""

    def __init__(self, m, k, groups, mode, seed, activation=False):
        cuda = {"device": "cuda"}
        torch.manual_seed(seed)
        self.m, self.k, self.mode = m, k, mode
        self.x = torch.randn(m, 2 * k if activation else k, dtype=torch.bfloat16, **cuda)
        draws = torch.randint(groups, (m,), **cuda)
        self.sizes = torch.bincount(draws, minlength=groups).int()
        self.rows = torch.full((m, k), 0xFF, dtype=torch.uint8, **cuda)
        self.columns = torch.full((k, blocks(m, groups, 32) * 32), 0xFF, dtype=torch.uint8, **cuda)
        shapes = {"tensor": ((1,), (1,)), "row": ((m,), (groups, k))}
        if mode in BLOCKS:
            block = BLOCKS[mode]
            shapes[mode] = ((m, -(-k // block)), (blocks(m, groups, block), k))
        dtype = torch.uint8 if mode == "mx" else torch.float32
        self.row_scales, self.column_scales = (torch.zeros(shape, dtype=dtype, **cuda) for shape in shapes[mode])
        scale_code = S.E8M0 if mode == "mx" else S.F32
        self.kept = [view(self.x), view(self.rows, S.E4M3), view(self.columns, S.E4M3)]
        for scales in (self.row_scales, self.column_scales):
            self.kept.append(S.Scales(MODES[mode], view(scales, scale_code)))
        self.activation = activation

    def arguments(self, library):
        args = S.QuantizeArgs()
        library.cadre_quantize_args_init(ctypes.byref(args), ctypes.c_size_t(ctypes.sizeof(args)))
        x, rows, columns, row_scales, column_scales = map(ctypes.pointer, self.kept)
        args.x, args.rows, args.columns = x, rows, columns
        args.rows_scales, args.columns_scales = row_scales, column_scales
        args.group_sizes = S.Sizes(self.sizes.data_ptr(), S.I32, S.Device(S.CUDA, 0), len(self.sizes))
        if self.activation:
            args.activation.kind = S.SWIGLU
        return args

    def bytes(self):
        block = 1 if self.mode in ("tensor", "row") else BLOCKS[self.mode]
        scale_bytes = self.row_scales.nbytes + (self.k * self.m // block if self.mode in BLOCKS else 0)
        return self.x.nbytes + 2 * self.m * self.k + scale_bytes

    def check(self):
        """Rows bit by bit; the transposed copy by its first group."""
        if self.activation:
            return
        x = self.x.float()
        block = {"tensor": None, "row": self.k}.get(self.mode, BLOCKS.get(self.mode))
        if block is None:
            amax = x.abs().max().expand(self.m, 1)
        else:
            padded = torch.nn.functional.pad(x, (0, -self.k % block)).view(self.m, -1, block)
            amax = padded.abs().amax(-1)
        scale = amax / torch.full_like(amax, 448)  # by a number torch multiplies with its inverse on a GPU
        if self.mode == "mx":
            scale = rounded_up(scale)
            got = torch.exp2(self.row_scales.float() - 127)
        else:
            got = self.row_scales.view(self.m, -1) if self.mode != "tensor" else self.row_scales.expand(self.m, 1)
        torch.testing.assert_close(got, scale.contiguous(), rtol=0, atol=0)
        inverse = (1 / scale).repeat_interleave(block or self.k, 1)[:, : self.k]
        codes = (x * inverse).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(self.rows, codes.view(torch.uint8)), "codes differ"
        first = int(self.sizes[0])
        rows = min(first, 32)
        if self.mode == "tensor":
            assert torch.equal(self.columns[:, :first], self.rows[:first].T), "the transposed copy differs"
        elif self.mode == "mx" and rows:
            scale = rounded_up(x[:rows].abs().amax(0) / 448)
            codes = (x[:rows] / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
            assert torch.equal(self.columns[:, :rows], codes.T), "the transposed copy differs"


def microseconds(runs, calls=200):
    for i in range(20):
        runs[i % len(runs)]()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for i in range(calls):
        runs[i % len(runs)]()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls * 1e3


def main():
    library = ctypes.CDLL(sys.argv[1])
    library.cadre_status_message.restype = ctypes.c_char_p
    context = ctypes.c_void_p()
    if library.cadre_context_create(None, ctypes.byref(context)):
        raise SystemExit(library.cadre_status_message().decode())

    def call(args):
        if library.cadre_quantize(context, ctypes.byref(args)):
            raise SystemExit(library.cadre_status_message().decode())

    results = []
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}")
    print(f"{'layer':14}{'what':22}{'us':>9}{'TB/s':>8}{'of copy':>9}")
    for name, (m, groups, hidden, inner) in LAYERS.items():
        for k, activation in ((hidden, False), (inner, False), (inner, True)):
            for mode in MODES:
                first = Case(m, k, groups, mode, 0, activation)
                count = max(2, -(-BEYOND_L2 // first.bytes()))
                cases = [first, *(Case(m, k, groups, mode, seed, activation) for seed in range(1, count))]
                arguments = [case.arguments(library) for case in cases]
                call(arguments[0])
                torch.cuda.synchronize()
                first.check()
                took = microseconds([lambda a=a: call(a) for a in arguments])
                half = [torch.empty(first.bytes() // 2, dtype=torch.uint8, device="cuda") for _ in range(2 * count)]
                pairs = list(zip(half[::2], half[1::2]))
                copied = microseconds([lambda p=p: p[0].copy_(p[1]) for p in pairs])
                what = f"{mode} k={k}{' swiglu' if activation else ''}"
                rate, share = first.bytes() / took / 1e6, copied / took
                print(f"{name:14}{what:22}{took:9.1f}{rate:8.2f}{share:9.2f}", flush=True)
                results.append({"layer": name, "mode": mode, "m": m, "k": k, "groups": groups, "swiglu": activation,
                                "us": took, "tb_per_s": rate, "share_of_copy": share})
                del cases, first, half, pairs, arguments
    if len(sys.argv) > 2:
        head = {"command": shlex.join(["python", *sys.argv]), "device": torch.cuda.get_device_name(), "torch": torch.__version__}
        Path(sys.argv[2]).write_text(json.dumps({**head, "rows": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
