#!/usr/bin/env python3
"""Times route, permute, combine and combine_grad on a GPU, beside a copy of the same rows. Results are checked first.

usage: python bench/row_ops.py build/cuda/libcadre.so

Each op runs in a loop of its own (20 calls, then 200 timed ones), without flushing L2. Bytes count rows and tokens once.
"""

import ctypes
import sys

import torch

LAYERS = {  # tokens, top_k, experts, h
    "qwen3-30b": (8192, 8, 128, 2048),
    "qwen3-235b": (8192, 8, 128, 4096),
    "mixtral-8x7b": (8192, 2, 8, 4096),
    "gpt-oss-120b": (8192, 4, 128, 2880),
    "decode": (64, 8, 128, 2048),
}
DTYPES = {torch.float32: 2, torch.bfloat16: 3, torch.int32: 6}


class Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("device", Device),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
    ]


def view(tensor):
    dims = ctypes.c_int64 * 4
    return Tensor(
        tensor.data_ptr(),
        DTYPES[tensor.dtype],
        Device(1, 0),
        tensor.dim(),
        dims(*tensor.shape),
        dims(*tensor.stride()),
    )


class Library:
    """The row ops of one libcadre.so. Their C structs hold a size, pointers to tensors and, last, options."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.cadre_status_message.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p()
        if self.lib.cadre_context_create(None, ctypes.byref(self.context)):
            raise SystemExit(self.lib.cadre_status_message().decode())

    def call(self, op, *tensors):
        """A function without arguments that calls the op; it has been called once."""
        views = [None if tensor is None else view(tensor) for tensor in tensors]
        pointers = ctypes.c_void_p * (len(views) + 2)
        args = pointers(
            ctypes.sizeof(pointers),
            *(None if v is None else ctypes.addressof(v) for v in views),
            None,
        )
        function = getattr(self.lib, f"cadre_{op}")

        def run(keep=(views, tensors)):
            if function(self.context, ctypes.byref(args)):
                raise SystemExit(self.lib.cadre_status_message().decode())

        run()
        return run


def microseconds(run, calls=200):
    for _ in range(20):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls * 1e3


def measure(library, tokens, top_k, experts, width):
    """(op, microseconds, bytes) for each op."""
    rows = tokens * top_k
    cuda = {"device": "cuda"}
    ids = torch.rand(tokens, experts, **cuda).topk(top_k, 1).indices.int().contiguous()
    weights = torch.rand(tokens, top_k, **cuda)
    sizes, source = (torch.empty(n, dtype=torch.int32, **cuda) for n in (experts, rows))
    slot = torch.empty(tokens, top_k, dtype=torch.int32, **cuda)
    x = torch.randn(tokens, width, **cuda).bfloat16()
    y, dy = (torch.full((rows, width), torch.nan, dtype=torch.bfloat16, **cuda) for _ in range(2))
    out, dweights = torch.full_like(x, torch.nan), torch.full_like(weights, torch.nan)

    runs = {
        "route": (library.call("route", ids, sizes, source, slot), 0),
        "permute": (library.call("permute", x, source, y), y.nbytes + x.nbytes),
        "combine": (library.call("combine", y, slot, weights, None, None, out), y.nbytes + x.nbytes),
        "combine_grad": (
            library.call("combine_grad", x, slot, source, weights, y, dy, dweights),
            2 * y.nbytes + 2 * x.nbytes,
        ),
    }
    order = torch.argsort(ids.flatten(), stable=True) // top_k
    assert torch.equal(source.long(), order) and torch.equal(y, x[order])
    expected = (y[slot.long()].float() * weights[..., None]).sum(1)
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=1e-3)
    runs["copy"] = (lambda: dy.copy_(y), 2 * y.nbytes)
    return [(op, microseconds(run), size) for op, (run, size) in runs.items()]


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    library = Library(sys.argv[1])
    for name, layer in LAYERS.items():
        for op, time, size in measure(library, *layer):
            rate = f", {size / time / 1e6:.2f} TB/s" if size else ""
            print(f"{name:13} {op:13} {time:7.1f} us{rate}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
