"""Checks and canonical forms of arguments, at trace time."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import _dtypes

_OPERANDS = ("float64", "float32", "bfloat16", "float16", "int8")
_F32_ACCURACY = ("DEFAULT", "HIGHEST", "F32_F32_F32", "TF32_TF32_F32_X3")
_TF32 = ("TF32_TF32_F32",)


def array(op, name, value, rank):
    """An array of this rank and of a type that cadre multiplies."""
    value = jnp.asarray(value)
    if value.ndim != rank:
        raise ValueError(f"{op}: {name}.ndim = {value.ndim}, expected {rank}")
    if value.dtype.name not in _OPERANDS:
        raise TypeError(
            f"{op}: {name}.dtype = {value.dtype.name}, expected one of {', '.join(_OPERANDS)}"
        )
    return value


def refuse_quantized(op, lhs, rhs):
    """Values with scales beside them (qwix's QArray); NotImplementedError lets tokamax try its next implementation."""
    for name, value in (("lhs", lhs), ("rhs", rhs)):
        if hasattr(value, "qvalue"):
            raise NotImplementedError(
                f"{op}: {name} is a {type(value).__name__}, expected an array that isn't quantised"
            )


def equal(op, name, received, reference, expected):
    if received != expected:
        raise ValueError(f"{op}: {name} = {received}, expected {reference} = {expected}")


def group_sizes(op, value):
    """Sizes as the kernels read them (i32, u32 or i64), from any integer type and from tokamax's GroupSizes."""
    value = getattr(value, "value", value)
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{op}: group_sizes.dtype = {value.dtype.name}, expected an integer type")
    if value.dtype.name in ("int32", "uint32", "int64"):
        return value
    return value.astype(jnp.int64 if value.dtype.name == "uint64" else jnp.int32)


def group_sizes_vector(op, value):
    value = group_sizes(op, value)
    if value.ndim != 1:
        raise ValueError(f"{op}: group_sizes.ndim = {value.ndim}, expected 1")
    return value


def group_offset(op, value):
    """A scalar i32 or i64, from None, a Python int, or an array of shape () or (1,)."""
    if value is None:
        return jnp.zeros((), jnp.int32)
    value = jnp.asarray(value)
    if value.shape not in ((), (1,)):
        raise ValueError(f"{op}: group_offset.shape = {value.shape}, expected () or (1,)")
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{op}: group_offset.dtype = {value.dtype.name}, expected an integer type")
    value = value.reshape(())
    return value if value.dtype.name in ("int32", "int64") else value.astype(jnp.int32)


def num_local_groups(op, local, total, sharded):
    """More sizes than local groups are fine where a group_offset says which ones are meant."""
    if sharded and local <= total:
        return
    if local != total:
        expected = "at least" if sharded else "exactly"
        raise ValueError(
            f"{op}: group_sizes.shape[0] = {total}, expected {expected} rhs.shape[0] = {local}"
        )


def out_dtype(op, lhs, rhs, preferred):
    """The result's type: the promoted one (int8 x int8: int32), or what is asked for."""
    if preferred is None:
        return _dtypes.numpy_of(
            _dtypes.default_output(_dtypes.code_of(lhs.dtype), _dtypes.code_of(rhs.dtype))
        )
    dtype = np.dtype(preferred)
    allowed = ("float64", "float32", "bfloat16", "float16")
    if lhs.dtype.name == rhs.dtype.name == "int8":
        allowed += ("int32",)
    if dtype.name not in allowed:
        raise TypeError(
            f"{op}: preferred_element_type = {dtype.name}, expected one of {', '.join(allowed)}"
        )
    return jax.dtypes.canonicalize_dtype(dtype)


def precision(op, value):
    """0 for f32 accuracy, 1 for tf32. What lax knows beyond these is refused by name."""
    if isinstance(value, (tuple, list)):
        if len(set(map(str, value))) != 1:
            raise NotImplementedError(
                f"{op}: precision = {value}, expected the same for both operands"
            )
        value = value[0]
    if value is None:
        return 0
    if isinstance(value, str):
        try:
            value = lax.Precision(value)
        except ValueError:
            try:
                value = lax.DotAlgorithmPreset[value]
            except KeyError:
                raise ValueError(
                    f"{op}: precision = {value!r}, expected one that lax knows"
                ) from None
    name = getattr(value, "name", str(value))
    if name in _F32_ACCURACY:
        return 0
    if name in _TF32:
        return 1
    raise NotImplementedError(
        f"{op}: precision = {name}, expected one of {', '.join(_F32_ACCURACY + _TF32)}"
    )
