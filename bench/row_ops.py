#!/usr/bin/env python3
"""Times the ops around the products on a GPU, beside a copy of the same rows. Results are checked first.

usage: python bench/row_ops.py build/cuda/libcadre.so

Each op runs in a loop of its own (20 calls, then 200 timed ones), without flushing L2. Bytes count rows and tokens
once. The share is that of the copy's bandwidth. "permute by row" has no slot_row and reads a token for each of its
rows.
"""

import ctypes
import sys

import torch

LAYERS = {  # tokens, top_k, experts, h, i
    "qwen3-30b": (8192, 8, 128, 2048, 768),
    "qwen3-235b": (8192, 8, 128, 4096, 1536),
    "mixtral-8x7b": (8192, 2, 8, 4096, 14336),
    "gpt-oss-120b": (8192, 4, 128, 2880, 2880),
    "decode": (64, 8, 128, 2048, 768),
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


class Activation(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("layout", ctypes.c_int32),
        ("alpha", ctypes.c_double),
        ("limit", ctypes.c_double),
        ("up_offset", ctypes.c_double),
    ]


SWIGLU = Activation(kind=5, layout=0)
OPTIONS = None  # where a C struct has its options


class Library:
    """The row ops of one libcadre.so. Their C structs hold a size, pointers to tensors, activations and options."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.cadre_status_message.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p()
        if self.lib.cadre_context_create(None, ctypes.byref(self.context)):
            raise SystemExit(self.lib.cadre_status_message().decode())

    def call(self, op, *fields):
        """A function without arguments that calls the op; it has been called once."""
        given = [view(field) if isinstance(field, torch.Tensor) else field for field in fields]
        types = [Activation if isinstance(field, Activation) else ctypes.c_void_p for field in given]

        class Args(ctypes.Structure):
            _fields_ = [("size", ctypes.c_size_t), *((f"field{i}", t) for i, t in enumerate(types))]

        pointers = [ctypes.addressof(field) if isinstance(field, Tensor) else field for field in given]
        args = Args(ctypes.sizeof(Args), *pointers)
        function = getattr(self.lib, f"cadre_{op}")

        def run(keep=(given, fields)):
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


def measure(library, tokens, top_k, experts, width, inner):
    """(op, microseconds, bytes) for each op."""
    rows = tokens * top_k
    cuda = {"device": "cuda"}
    bf16 = {"dtype": torch.bfloat16, **cuda}
    ids = torch.rand(tokens, experts, **cuda).topk(top_k, 1).indices.int().contiguous()
    weights = torch.rand(tokens, top_k, **cuda)
    sizes, source = (torch.empty(n, dtype=torch.int32, **cuda) for n in (experts, rows))
    slot = torch.empty(tokens, top_k, dtype=torch.int32, **cuda)
    x = torch.randn(tokens, width, **cuda).bfloat16()
    y, dy = (torch.full((rows, width), torch.nan, **bf16) for _ in range(2))
    out, dweights = torch.full_like(x, torch.nan), torch.full_like(weights, torch.nan)
    preact = torch.randn(rows, 2 * inner, **cuda).bfloat16()
    grad = torch.randn(rows, inner, **cuda).bfloat16()
    d_preact, activated = torch.full_like(preact, torch.nan), torch.full_like(grad, torch.nan)
    scale, dot = torch.rand(rows, **cuda), torch.full((rows,), torch.nan, **cuda)

    runs = {
        "route": (library.call("route", ids, sizes, source, slot, OPTIONS), 0),
        "permute by row": (library.call("permute", x, source, dy, OPTIONS), y.nbytes + x.nbytes),
        "permute": (library.call("permute", x, source, y, OPTIONS, slot), y.nbytes + x.nbytes),
    }
    order = torch.argsort(ids.flatten(), stable=True) // top_k
    assert torch.equal(source.long(), order) and torch.equal(y, x[order]) and torch.equal(dy, y)
    runs |= {
        "combine": (
            library.call("combine", y, slot, weights, None, None, out, OPTIONS),
            y.nbytes + x.nbytes,
        ),
        "combine_grad": (
            library.call("combine_grad", x, slot, source, weights, y, dy, dweights, OPTIONS),
            2 * y.nbytes + x.nbytes,
        ),
        "activate": (
            library.call("activate", preact, SWIGLU, activated, OPTIONS),
            preact.nbytes + grad.nbytes,
        ),
    }
    rows_of_slots = y[slot.long()].float()
    expected = (rows_of_slots * weights[..., None]).sum(1)
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=1e-3)
    torch.testing.assert_close(dweights, (rows_of_slots * x.float()[:, None]).sum(2), rtol=1e-3, atol=1e-1)
    scaled = (weights[..., None] * x.float()[:, None]).bfloat16()
    assert torch.equal(dy[slot.long()], scaled)
    gate, up = (part.float() for part in preact.chunk(2, 1))
    swiglu = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(activated.float(), swiglu, rtol=2**-7, atol=1e-3)
    runs["activate_grad"] = (
        library.call("activate_grad", preact, grad, scale, SWIGLU, d_preact, activated, dot, OPTIONS),
        2 * preact.nbytes + 2 * grad.nbytes,
    )
    torch.testing.assert_close(dot, (swiglu * grad.float()).sum(1), rtol=1e-3, atol=1e-1)
    runs["copy"] = (lambda: dy.copy_(y), 2 * y.nbytes)
    return [(op, microseconds(run), size) for op, (run, size) in runs.items()]


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    library = Library(sys.argv[1])
    for name, layer in LAYERS.items():
        results = measure(library, *layer)
        copied = results[-1][2] / results[-1][1]
        for op, time, size in results:
            rate = f", {size / time / 1e6:.2f} TB/s, {size / time / copied:.2f} of a copy" if size else ""
            print(f"{name:13} {op:15} {time:7.1f} us{rate}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
