"""Cuts a layer's time on a GPU into phases, from the kernels that torch.profiler saw.

A kernel's share is the time from the end of what ran before it to its own end, since kernels begin while the ones before them
still run. Products have one name each in every pass, so they are told apart by their order (src/ops/moe_mlp_passes.cc).
"""

import json
import re
import tempfile
from pathlib import Path

#: Of a training step, in this order; forward passes have the first two.
PRODUCTS = ("w13", "w2", "w2, input gradient", "w2, weight gradient", "w13, input gradient", "w13, weight gradient")
_PRODUCT = re.compile(r"\b(gmm|turn|even|mma|simt)_kernel\b")
_OTHERS = (
    ("route", re.compile(r"\b(route|count|scan|place|select)_kernel\b")),
    ("gather", re.compile(r"\b(permute|spread)_kernel\b")),
    ("activation", re.compile(r"\bactivate(_grad)?_kernel\b")),
    ("combine", re.compile(r"\b(combine(_stream)?|combine_grad|narrow_grad)_kernel\b")),
    ("bias gradients", re.compile(r"\bdbias(_scale)?_kernel\b")),
)
REST = "the rest"


def phase_of(name):
    """The phase of a kernel, "product" for one that multiplies."""
    if "cadre::" not in name:
        return REST
    if _PRODUCT.search(name):
        return "product"
    return next((phase for phase, pattern in _OTHERS if pattern.search(name)), REST)


def phases(kernels, calls):
    """{phase: seconds of a call} of [(name, start, end)] in seconds, in which a call ran `calls` times."""
    kernels = sorted(kernels, key=lambda kernel: kernel[1])
    products = sum(phase_of(name) == "product" for name, *_ in kernels)
    each = products // calls if calls and products % calls == 0 else 0
    # More or fewer kernels than products: what belongs to which can't be told.
    names = PRODUCTS if each == len(PRODUCTS) else PRODUCTS[:2] if each == 2 else ("products",)
    found = dict.fromkeys(("route", "gather", "w13", "activation", "w2", "combine"), 0.0)
    index, until = 0, None
    for name, start, end in kernels:
        phase = phase_of(name)
        if phase == "product":
            phase = names[index % len(names)]
            index += 1
        begin = start if until is None else min(max(start, until), end)
        if until is not None and start > until:
            found["between kernels"] = found.get("between kernels", 0.0) + start - until
        found[phase] = found.get(phase, 0.0) + end - begin
        until = end if until is None else max(until, end)
    return {name: seconds / calls for name, seconds in found.items() if seconds}


def kernels_of(trace):
    """(name, start, end) in seconds of what a trace of torch.profiler says ran on the GPU."""
    events = [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    return [(event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6) for event in events]


def profiled(torch, call, calls=10):
    """Phases of `call`, run `calls` times behind what has warmed the GPU up."""
    with tempfile.TemporaryDirectory() as folder:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(calls):
                call()
            torch.cuda.synchronize()
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return phases(kernels_of(json.loads(path.read_text(encoding="utf-8"))), calls)
