"""CUDA events around one call inside a JAX program and around a direct one, each behind a write that empties the L2.

This is how cadre bench times its calls (bench/cuda/timer.cc), so the times can be compared with its own: none of them holds a
wait for the host, for the write runs for longer than a launch takes.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

#: As in bench/cuda/timer.cc.
FLUSH_BYTES = 256 << 20


class Marks:
    """Two events, and the memory whose writing empties the L2. `compiled`: jax_marks.so, made now where it isn't given."""

    def __init__(self, compiled=None):
        library = ctypes.CDLL(str(compiled or _compile()))
        jax.ffi.register_ffi_target(
            "cadre_bench_mark", jax.ffi.pycapsule(library.cadre_bench_mark), platform="CUDA"
        )
        self._flushed = jax.block_until_ready(jnp.zeros(FLUSH_BYTES, jnp.uint8))
        self._cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self._events:
            self._call("cuEventCreate", ctypes.byref(event), 0)

    def around(self, product, sizes):
        """`product(sizes)` between the marks, traced into a JAX program: it waits for the sizes behind the first, and the
        second waits for its result."""
        out = product(self._mark(sizes, 0, flush=True))
        return out, self._mark(out, 1, flush=False)

    def _mark(self, array, event, flush):
        # The first mark hands the sizes on; the second hands on nothing, for the result is read by others.
        kind = jax.ShapeDtypeStruct(array.shape, array.dtype)
        nothing = jax.ShapeDtypeStruct((1,), jnp.int32)
        call = jax.ffi.ffi_call(
            "cadre_bench_mark",
            kind if flush else nothing,
            has_side_effect=True,
            input_output_aliases={0: 0} if flush else None,
        )
        return call(
            array,
            event=np.int64(self._events[event].value),
            flushed=np.int64(self._flushed.unsafe_buffer_pointer()),
            flushed_bytes=np.int64(FLUSH_BYTES if flush else 0),
        )

    def around_direct(self, call):
        """The same for what launches on the default stream; returns its seconds."""
        address = ctypes.c_uint64(self._flushed.unsafe_buffer_pointer())
        self._call(
            "cuMemsetD8Async", address, ctypes.c_ubyte(0), ctypes.c_size_t(FLUSH_BYTES), None
        )
        self._call("cuEventRecord", self._events[0], None)
        call()
        self._call("cuEventRecord", self._events[1], None)
        return self.seconds()

    def seconds(self):
        """From the first mark to the second, once the GPU gets there."""
        milliseconds = ctypes.c_float()
        self._call("cuEventSynchronize", self._events[1])
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), *self._events)
        return milliseconds.value * 1e-3

    def _call(self, name, *arguments):
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: CUDA error {code}")


def _compile():
    source = Path(__file__).with_name("jax_marks.cc")
    output = Path(tempfile.mkdtemp(prefix="cadre-bench-")) / "jax_marks.so"
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or "g++"]
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", f"-isystem{jax.ffi.include_dir()}"]
    subprocess.run([*compiler, *flags, str(source), "-o", str(output)], check=True)
    return output
