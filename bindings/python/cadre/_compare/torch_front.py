"""The layer with cadre.torch.moe_mlp, as torch's ops around grouped_mm, and with a loop of torch.mm."""

import gc
import importlib.util
import json
import tempfile
import time
from pathlib import Path

import numpy

from .case import ALPHA, LIMIT, UP_OFFSET
from .contender import Contender

NAME = "PyTorch"
GROUPED, LOOP = "torch's grouped_mm", "a loop of torch.mm"


def available():
    """Why it can't be measured, or None."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    try:
        import cadre.torch  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def version():
    import torch

    return torch.__version__


def default_dtype(device):
    return "bf16"


def copies():
    return 1


def has_gpu():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def gpu_name():
    import torch

    return torch.cuda.get_device_name()


def gpu_free_bytes():
    import torch

    return torch.cuda.mem_get_info()[0]


def release():
    """Gives memory that the last contenders held back to the system: other fronts are measured next."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def ops_of(contender):
    """(start, events) of one call under torch.profiler: operators with their shapes and, on a GPU, kernels."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        with torch.profiler.profile(record_shapes=True) as profile:
            start = time.perf_counter()
            contender.call()
            contender.wait()
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return start, json.loads(path.read_text())["traceEvents"]


def _tensor(array, device):
    import torch

    if array is None:
        return None
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def _activated(torch, pre, case):
    gate, up = pre[:, : case.intermediate], pre[:, case.intermediate :]
    if case.layer.clamped:
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        return gate * torch.sigmoid(ALPHA * gate) * (up + UP_OFFSET)
    return torch.nn.functional.silu(gate) * up


def contenders(case, device):
    """(contenders, reasons of those that are left out)."""
    import torch

    import cadre.torch

    x, w13, w2, ids, weights, bias13, bias2 = (
        _tensor(array, device)
        for array in (case.x, case.w13, case.w2, case.ids, case.weights, case.bias13, case.bias2)
    )
    as_kn13, as_kn2 = w13.transpose(1, 2), w2.transpose(1, 2)
    activation = "clamped_swiglu" if case.layer.clamped else "swiglu"
    clamp = {"alpha": ALPHA, "limit": LIMIT, "up_offset": UP_OFFSET} if case.layer.clamped else {}

    def mine():
        return cadre.torch.moe_mlp(
            x, ids, weights, w13, w2, bias13=bias13, bias2=bias2, activation=activation, **clamp
        )

    def around(products):
        """The layer out of torch's ops, as transformers composes it, around products(rows, weights [g, k, n], ends)."""
        flat = ids.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token, expert = order // case.top_k, flat[order]
        ends = torch.cumsum(torch.bincount(flat, minlength=case.experts), 0).to(torch.int32)
        pre = products(x[token], as_kn13, ends)
        pre = pre if bias13 is None else pre + bias13[expert]
        y = products(_activated(torch, pre, case), as_kn2, ends)
        y = y if bias2 is None else y + bias2[expert]
        y = y * weights.reshape(-1)[order][:, None]
        out = torch.zeros(case.tokens, case.hidden, dtype=torch.float32, device=device)
        return out.index_add_(0, token, y.float()).to(x.dtype)

    grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)

    def loop(rows, matrices, ends):
        out = torch.empty((rows.shape[0], matrices.shape[2]), dtype=rows.dtype, device=device)
        begin = 0
        for expert, end in enumerate(ends.tolist()):
            if end > begin:
                torch.mm(rows[begin:end], matrices[expert], out=out[begin:end])
            begin = end
        return out

    def without_gradients(call):
        def run():
            with torch.no_grad():
                return call()

        return run

    def made(name, call):
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        return Contender(name, without_gradients(call), wait, lambda t: t.float().cpu().numpy())

    found = [made("cadre", mine)]
    left_out = {}
    if grouped_mm is None:
        left_out[GROUPED] = f"torch {torch.__version__} has none"
    else:
        found.append(
            made(GROUPED, lambda: around(lambda rows, matrices, ends: grouped_mm(rows, matrices, offs=ends)))
        )
    found.append(made(LOOP, lambda: around(loop)))
    return found, left_out
