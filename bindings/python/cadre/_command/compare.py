"""Compare a layer of experts by cadre with what you have now, on this machine.

MODEL is a layer of a known model or four numbers, EXPERTS,TOP_K,HIDDEN,INTERMEDIATE. Every front that is installed
(PyTorch, JAX, NumPy) runs the forward pass of the whole layer with cadre and with its own products, checks each result
against sums in f64, and times them in turn. A layer that doesn't fit into memory is cut, and the answer says so.
"""

import functools
import json
import os
import sys
import time

from .. import _versions
from .._compare import case as cases
from .._compare import clock, jax_front, models, numpy_front, torch_front
from .._compare.trace import Trace
from .._units import time_of
from . import NOT_AVAILABLE, picture
from .progress import Progress

EXAMPLE = "cadre compare qwen3-30b --tokens 512"
FRONTS = {"torch": torch_front, "jax": jax_front, "numpy": numpy_front}
DEFAULT_TOKENS = {"cpu": 512, "cuda": 8192}
#: Of the free memory, for weights: what is left holds rows between the products.
_SHARE_OF_MEMORY = 0.5


def _number(smallest, whole):
    def parse(text):
        value = int(text) if whole else float(text)
        if not smallest <= value <= 1e9:
            raise ValueError
        return value

    parse.__name__ = f"{'whole number' if whole else 'number'} from {smallest} on"  # for argparse's message
    return parse


def add_arguments(parser):
    parser.add_argument(
        "model",
        nargs="*",
        metavar="MODEL",
        help=f"{', '.join(models.LAYERS)}, or EXPERTS,TOP_K,HIDDEN,INTERMEDIATE; default: qwen3-30b",
    )
    parser.add_argument("--tokens", type=_number(1, True), help="default: 512 on a CPU, 8192 on a GPU")
    parser.add_argument("--device", help="cpu or cuda; default: a GPU if there is one")
    parser.add_argument("--front", action="append", help="torch, jax or numpy; default: all that are installed")
    parser.add_argument("--dtype", help="bf16, f16 or f32; default: bf16, for NumPy f32")
    parser.add_argument(
        "--seconds", type=_number(1, False), default=40.0, help="for all measurements; default: %(default)g"
    )
    parser.add_argument(
        "--report", metavar="FILE", help=f"write the answer's page to FILE.html; default: on a terminal {picture.PAGE}"
    )
    parser.add_argument("--no-report", action="store_true", help="write no page")
    parser.add_argument("--trace", metavar="FILE", help="also write what ran when, for ui.perfetto.dev")
    parser.add_argument("--json", action="store_true", help="print one JSON object, which python -m cadre.report reads")


def _one_of(option, value, known):
    if value not in known:
        raise ValueError(f"{option} = {value}, expected one of {', '.join(known)}")
    return value


def _fronts(options, device):
    """{name: module} of the fronts to measure, and why others are left out."""
    asked = [_one_of("--front", name, FRONTS) for name in options.front or ()]
    left_out, found = {}, {}
    for name in asked or FRONTS:
        module = FRONTS[name]
        reason = module.available()
        if reason is None and device == "cuda" and (name == "numpy" or not module.has_gpu()):
            reason = "NumPy computes on the CPU" if name == "numpy" else f"{module.NAME} sees no GPU"
        if reason is None:
            found[name] = module
        else:
            left_out[name] = reason
    return found, left_out


def _device(options, backends):
    """(cpu or cuda, what is to be said about it)."""
    asked = options.device and _one_of("--device", options.device, ("cpu", "cuda"))
    if asked == "cpu":
        return "cpu", []
    seen = torch_front.has_gpu() or jax_front.has_gpu()
    if seen and "cuda" in backends:
        return "cuda", []
    reason = "this libcadre was built without CUDA" if seen else "PyTorch and JAX see no GPU"
    if asked == "cuda":
        raise NotImplementedError(f"--device = cuda, but {reason}")
    return "cpu", [f"There is a GPU, but {reason}: measured on the CPU."] if seen else []


def _measure(front_name, layer, tokens, options, device, share_s, progress, trace):
    """The result row of one layer by one front."""
    module = FRONTS[front_name]
    dtype = options.dtype or module.default_dtype(device)
    itemsize = cases.DTYPES[dtype].itemsize
    begin = time.perf_counter()
    room = _SHARE_OF_MEMORY * cases.free_bytes()
    cut = cases.cut_to(layer, tokens, itemsize, room, module.copies() + (device == "cpu" and front_name == "jax"))
    if device == "cuda":
        gpu = cases.cut_to(layer, tokens, itemsize, _SHARE_OF_MEMORY * module.gpu_free_bytes(), 1)
        cut = min(cut, gpu, key=lambda each: each.experts)
    progress.phase(f"{layer.name}, {cut.tokens} tokens, {module.NAME}")
    progress.step("random weights")
    case = cases.Case(layer, cut, dtype)
    contenders, left_out = module.contenders(case, device)
    timings = clock.first_calls(contenders, case, left_out, share_s / 4, progress.step)
    left_s = max(1.0, share_s - (time.perf_counter() - begin))
    record = trace and functools.partial(trace.turn, f"{layer.name}, {module.NAME}")
    rounds = clock.rounds(timings, left_s, device == "cuda", progress.step, record)
    if trace and hasattr(module, "ops_of"):
        for timing in timings:
            if not timing.estimated:
                progress.step(f"ops of {timing.contender.name}")
                start, events = module.ops_of(timing.contender)
                trace.ops(layer.name, timing.contender.name, start, events)
    mine = next(timing for timing in timings if timing.contender.is_cadre)
    return {
        "op": "layer",
        "case": "forward",
        "shape": layer.name,
        "front": front_name,
        "dtype": dtype,
        "tokens": cut.tokens,
        "num_groups": cut.experts,
        "top_k": layer.top_k,
        "hidden": layer.hidden,
        "intermediate": layer.intermediate,
        "condition": "sustained" if device == "cuda" else "in turn",
        "rounds": rounds,
        "error": mine.error,
        "median_s": mine.median_s,
        "gflops": layer.flops(case.rows) / mine.median_s / 1e9,
        "rivals": {
            timing.contender.name: {"median_s": timing.median_s}
            | ({"estimated": True} if timing.estimated else {})
            for timing in timings
            if timing is not mine
        },
        "left_out": left_out,
        **({"cut": cut.reason} if cut.reason else {}),
    }


def sentence(row, name):
    """The answer for one front, in one sentence."""
    what = f"a {row['shape']} layer of {row['tokens']} tokens"
    if row["shape"] not in models.LAYERS:
        what = f"a layer of {row['num_groups']} experts ({row['shape']}) and {row['tokens']} tokens"
    what = f"part of {what}" if "cut" in row else what
    start = f"On this machine {what} ({row['dtype']}, {name}) takes {time_of(row['median_s'])} with cadre"
    if not row["rivals"]:
        return start + "; there is nothing else to compare it with."
    rival, best = min(row["rivals"].items(), key=lambda item: item[1]["median_s"])
    ratio = best["median_s"] / row["median_s"]
    about = "about " if best.get("estimated") else ""
    start += f", {about}{time_of(best['median_s'])} with {rival}"
    if 0.97 <= ratio <= 1.03:
        return start + ": no difference."
    return start + (f": {ratio:.3g} times as long." if ratio > 1 else f": cadre takes {1 / ratio:.3g} times as long.")


def _table(rows):
    """Lines of a table with a bar for each time."""
    bars = picture.Bars(sys.stdout, left=53)
    yield f"{'':28} {'time':>10} {'over cadre':>11}"
    for row in rows:
        yield f"{row['shape']}, {row['tokens']} tokens, {row['dtype']}, {FRONTS[row['front']].NAME}"
        times = {"cadre": {"median_s": row["median_s"]}, **row["rivals"]}
        longest = max(entry["median_s"] for entry in times.values())
        for name, entry in times.items():
            bar = bars.bar(entry["median_s"] / longest)
            about = "~" if entry.get("estimated") else ""
            over = "" if name == "cadre" else f"{entry['median_s'] / row['median_s']:.2f}"
            yield f"  {name:26} {about + time_of(entry['median_s']):>10} {over:>11}  {bar}"
        for name, reason in row["left_out"].items():
            yield f"  {name:26} left out: {reason}"


def _document(options, device, rows, left_out, notes):
    found = _versions.collect()
    machine = {"model": found["cpu"], "logical_cpus": found["logical_cpus"], "packages": found["packages"]}
    if device == "cuda":
        machine["device"] = (torch_front if torch_front.has_gpu() else jax_front).gpu_name()
    words = ["cadre", "compare", *options.model, "--device", device, "--seconds", f"{options.seconds:g}"]
    for option, value in (("--tokens", options.tokens), ("--dtype", options.dtype)):
        words += [option, str(value)] if value else []
    for name in options.front or ():
        words += ["--front", name]
    return {
        "schema": 2,
        "cadre": found["version"],
        "command": " ".join([*words, "--json"]),
        "environment": {name: value for name, value in found["environment"].items() if value and "LIBRARY" not in name},
        "device": device,
        "machine": machine,
        "checks_passed": True,
        "answers": [sentence(row, FRONTS[row["front"]].NAME) for row in rows],
        "notes": notes,
        "left_out": left_out,
        "results": rows,
    }


def run(options):
    layers = [models.named(word) for word in options.model or ["qwen3-30b"]]
    if options.dtype:
        _one_of("--dtype", options.dtype, cases.DTYPES)
    from .._library import backends
    from .._library import version as cadre_version

    if options.report and options.no_report:
        raise ValueError(f"--report = {options.report} beside --no-report, expected one of them")
    for option, file in (("--trace", options.trace), ("--report", options.report)):
        picture.check_target(option, file)
    device, notes = _device(options, backends())
    busy = clock.share_of_others() if device == "cpu" else 0.0
    if busy > 0.1:
        notes.append(f"Other programs keep {busy:.0%} of the CPUs busy: these times are not to be trusted.")
    fronts, left_out = _fronts(options, device)
    if not fronts:
        raise NotImplementedError("; ".join(left_out.values()))
    tokens = options.tokens or DEFAULT_TOKENS[device]
    share_s = options.seconds / (len(layers) * len(fronts))
    rows, trace = [], Trace() if options.trace else None
    with Progress(options.seconds) as progress:
        for layer in layers:
            for name in fronts:
                try:
                    rows.append(_measure(name, layer, tokens, options, device, share_s, progress, trace))
                except MemoryError as error:
                    left_out[f"{layer.name}, {name}"] = str(error)
                except ArithmeticError as error:
                    print(f"cadre compare: {layer.name}, {FRONTS[name].NAME}: cadre: {error}", file=sys.stderr)
                    return 1
                finally:
                    FRONTS[name].release()
    notes += [f"{row['shape']}, {FRONTS[row['front']].NAME}: {row['cut']}." for row in rows if "cut" in row]
    if trace:
        trace.write(options.trace, {"command": " ".join(["cadre", *sys.argv[1:]]), "cadre": cadre_version})
    document = _document(options, device, rows, left_out, notes)
    text = json.dumps(document, indent=1)
    to_look_at = ""
    if options.report and rows:
        to_look_at = f"To look at: {picture.write_report(options.report, document, text)}"
    if options.json:
        print(text)
        return 0 if rows else NOT_AVAILABLE
    if rows and not options.report and not options.no_report and sys.stdout.isatty():
        to_look_at = picture.write_page(document)
    for row in rows:
        print(sentence(row, FRONTS[row["front"]].NAME))
    for note in (*notes, *(f"Not measured, {name}: {reason}." for name, reason in left_out.items())):
        print(note)
    if rows:
        where = "sustained on the GPU" if device == "cuda" else f"{os.cpu_count()} logical CPUs"
        print(f"\nForward pass, every result checked, medians, {where}:")
        print("\n".join(_table(rows)))
    if to_look_at:
        print(f"\n{to_look_at}")
    return 0 if rows else NOT_AVAILABLE
