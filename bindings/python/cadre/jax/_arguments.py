"""Checks and canonical forms of arguments, at trace time."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

from .. import _dtypes, _options

flag = _options.flag

FLOATS = ("float64", "float32", "bfloat16", "float16")
FP8 = ("float8_e4m3fn", "float8_e5m2")
FP8_RESULTS = ("float32", "bfloat16", "float16")
_OPERANDS = (*FLOATS, "int8")
_F32_ACCURACY = (
    "DEFAULT",
    "HIGH",
    "HIGHEST",
    "F32_F32_F32",
    "TF32_TF32_F32_X3",
    "BF16_BF16_F32_X3",
    "BF16_BF16_F32_X6",
    "BF16_BF16_F32_X9",
)
_TF32 = ("TF32_TF32_F32",)
# What is computed anyway for operands of these types.
_OF_OPERANDS = {
    "BF16_BF16_F32": "bfloat16",
    "F16_F16_F32": "float16",
    "F64_F64_F64": "float64",
}


def multiplies(types, result):
    """Whether cadre multiplies arrays of these types into a result of that one."""
    names = {x.name for x in types}
    return names <= set(_OPERANDS) and np.dtype(result).name in _results(names)


def _results(operands):
    return (*FLOATS, "int32") if operands == {"int8"} else FLOATS


def as_array(op, name, value, convert=jnp.asarray):
    """What is an array or can be made one, of any type."""
    if isinstance(value, jax.Array):
        return value
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{op}: {name} is a {type(value).__name__}, expected an array") from error


def rank_is(op, name, value, dims, error=ValueError):
    """`dims` are the names of the dims, in order."""
    if value.ndim != len(dims):
        raise error(f"{op}: {name}.shape = {value.shape}, expected [{', '.join(dims)}]")


def array(op, name, value, dims, types=_OPERANDS):
    """An array with these dims and of a type that cadre multiplies."""
    value = as_array(op, name, value)
    rank_is(op, name, value, dims)
    if value.dtype.name not in types:
        raise TypeError(
            f"{op}: {name}.dtype = {value.dtype.name}, expected one of {', '.join(types)}"
        )
    return value


def floats(op, name, value, dims):
    """An array with these dims and of a type that cadre adds."""
    return array(op, name, value, dims, FLOATS)


def refuse_containers(op, name, value):
    """What JAX takes apart into arrays and is no container of Python's: some other library's quantised values, say.
    NotImplementedError lets tokamax try its next implementation."""
    container = value is None or isinstance(value, (list, tuple, dict))
    if not container and not jax.tree_util.all_leaves([value]):
        raise NotImplementedError(
            f"{op}: {name} is a {type(value).__name__}, expected an array, a ScaledArray or a QArray"
        )


def equal(op, name, received, reference, expected, error=ValueError):
    if received != expected:
        raise error(f"{op}: {name} = {received}, expected {reference} = {expected}")


def _on_host_if_it_is(value):
    """A NumPy array of what the host holds, whose integers are whole; a list may hold traced values, too."""
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
        return jnp.asarray(value)
    if isinstance(value, (list, tuple)) and not value:
        return np.zeros(0, np.int32)
    held = np.asarray(value)
    # Integers beyond 64 bits stay Python's own.
    whole = held.dtype == object and all(type(each) is int for each in held.flat)
    return held if whole or held.dtype.kind in "iu" else jnp.asarray(value)


def _integers(op, name, value):
    """An integer array. What the host holds must fit the type that it gets, which is 32 bits wide without x64."""
    value = as_array(op, name, value, _on_host_if_it_is)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuO" and value.size:
        narrow = np.int64 if value.dtype == object else value.dtype
        limits = np.iinfo(jax.dtypes.canonicalize_dtype(narrow))
        if not limits.min <= int(value.min()) <= int(value.max()) <= limits.max:
            raise ValueError(
                f"{op}: {name} = {value}, expected {limits.min} to {limits.max} "
                f"({limits.dtype}; jax_enable_x64 gives more)"
            )
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{op}: {name}.dtype = {value.dtype.name}, expected an integer type")
    return value


def group_sizes(op, value):
    """Sizes of any integer type, from arrays, lists and tokamax's GroupSizes; the kernels read every type of whole bytes as it is."""
    value = _integers(op, "group_sizes", getattr(value, "value", value))
    return value if _dtypes.code_of(value.dtype) else value.astype(jnp.int32)


def group_sizes_vector(op, value):
    value = group_sizes(op, value)
    rank_is(op, "group_sizes", value, ("num_groups",))
    return value


@functools.partial(jax.jit, inline=True, keep_unused=True)
def zero_beside(array):
    """A scalar, made by a program that runs where the array is. A zero of the host's would be copied there by every call that
    isn't compiled."""
    del array
    return jnp.zeros((), jnp.int32)


def group_offset(op, value, sizes):
    """A scalar i32 or i64, from None, a Python int, or an array of shape () or (1,)."""
    if value is None:
        return zero_beside(sizes)
    value = _integers(op, "group_offset", value)
    if value.shape not in ((), (1,)):
        raise ValueError(f"{op}: group_offset.shape = {value.shape}, expected () or (1,)")
    value = value.reshape(())
    if value.dtype.name in ("int32", "int64"):
        return value
    wide = value.dtype.name in ("uint32", "uint64") and jax.config.jax_enable_x64
    return value.astype(jnp.int64 if wide else jnp.int32)


def weights_fit_sizes(op, name, weights, group_dim, sizes, sharded, error=ValueError):
    """More sizes than weights are fine where a group_offset says which ones are meant."""
    local, total = weights.shape[group_dim], sizes.shape[-1]
    if local == total or (sharded and _may_be_below(local, total)):
        return
    expected = "at least" if sharded else "exactly"
    raise error(
        f"{op}: group_sizes.shape[{sizes.ndim - 1}] = {total}, "
        f"expected {expected} {name}.shape[{group_dim}] = {local}"
    )


def _may_be_below(local, total):
    """Of symbolic dims nobody may know before the call runs; the library looks then."""
    symbolic = export.is_symbolic_dim(local) or export.is_symbolic_dim(total)
    return symbolic or local < total


def count(op, name, value):
    """A dim: an integer that is known while the call is traced, or a symbolic one."""
    if export.is_symbolic_dim(value):
        return value
    try:
        value = operator.index(value)
    except TypeError as error:
        raise TypeError(
            f"{op}: {name} = {value}, expected an integer known at trace time"
        ) from error
    if value < 0:
        raise ValueError(f"{op}: {name} = {value}, expected 0 or more")
    return value


def num_groups(op, name, value, total, sharded):
    """How many groups a result has: as many as there are sizes, or fewer where a group_offset says which are meant."""
    if value is None:
        return total
    value = count(op, name, value)
    if value == total or (sharded and _may_be_below(value, total)):
        return value
    expected = "at most" if sharded else "without a group_offset exactly"
    raise ValueError(f"{op}: {name} = {value}, expected {expected} group_sizes.shape[0] = {total}")


def out_dtype(op, lhs, rhs, preferred):
    """The result's type: the promoted one (int8 x int8: int32), or what is asked for."""
    if preferred is None:
        return _dtypes.numpy_of(
            _dtypes.default_output(_dtypes.code_of(lhs.dtype), _dtypes.code_of(rhs.dtype))
        )
    return _preferred(op, preferred, _results({lhs.dtype.name, rhs.dtype.name}))


def product_dtype(op, lhs, rhs, preferred):
    """out_dtype, of FP8 data as well."""
    if {lhs.dtype.name, rhs.dtype.name} <= set(FP8):
        return fp8_out_dtype(op, preferred)
    return out_dtype(op, lhs, rhs, preferred)


def fp8_out_dtype(op, preferred):
    """The result's type of a product of FP8 data."""
    return _preferred(op, "bfloat16" if preferred is None else preferred, FP8_RESULTS)


def sum_dtype(op, summed, preferred):
    """The type of a sum of rows: theirs, or what is asked for."""
    return summed.dtype if preferred is None else _preferred(op, preferred, FLOATS)


def lax_out_dtype(op, lhs, rhs, preferred):
    """The result's type as lax.ragged_dot chooses it, but int32 for int8 x int8. What lax refuses is refused in its own words."""
    types = [lhs.dtype, rhs.dtype]
    if preferred is None and {x.name for x in types} == {"float16", "bfloat16"}:
        return jnp.dtype(jnp.bfloat16)
    if preferred is None and multiplies(types, np.float32):
        return out_dtype(op, lhs, rhs, None)
    if preferred is not None:
        preferred = _dtype(op, preferred, _results({x.name for x in types}))
        if multiplies(types, preferred):
            return preferred
    shapes = ((1, 1), lhs.dtype), ((1, 1, 1), rhs.dtype), ((1,), np.int32)
    product = functools.partial(lax.ragged_dot, preferred_element_type=preferred)
    return jax.eval_shape(product, *(jax.ShapeDtypeStruct(*x) for x in shapes)).dtype


def _dtype(op, preferred, expected):
    if isinstance(preferred, (jax.Array, np.ndarray)):  # np.dtype would take an array's own
        raise _unexpected(op, "an array", expected)
    try:
        return jax.dtypes.canonicalize_dtype(np.dtype(preferred))
    except TypeError:
        raise _unexpected(op, repr(preferred), expected) from None


def _preferred(op, preferred, allowed):
    dtype = _dtype(op, preferred, allowed)
    if dtype.name not in allowed:
        raise _unexpected(op, np.dtype(preferred).name, allowed)
    return dtype


def _unexpected(op, preferred, allowed):
    return TypeError(
        f"{op}: preferred_element_type = {preferred}, expected one of {', '.join(allowed)}"
    )


def function(op, name, value):
    """What is called while the program is traced."""
    if not callable(value):
        raise TypeError(f"{op}: {name} = {value!r}, expected a function")


def sharding(op, value):
    """What a result may be resharded to."""
    if not isinstance(value, (jax.sharding.NamedSharding, jax.sharding.PartitionSpec)):
        raise TypeError(
            f"{op}: out_sharding is a {type(value).__name__}, "
            "expected a NamedSharding or PartitionSpec"
        )


def accumulator(dtype):
    """The type in which a result of this type is summed up."""
    dtype = np.dtype(dtype)
    narrow = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize <= 2
    return np.dtype(np.float32) if narrow else dtype


def existing_out(op, value, dims, shape, dtype):
    """What a result is written over or added to: of the result's own shape, whose dims are so called, and type."""
    value = as_array(op, "existing_out", value)
    equal(op, "existing_out.shape", value.shape, dims, shape)
    expected = np.dtype(dtype).name
    equal(op, "existing_out.dtype", value.dtype.name, "the result's dtype", expected, TypeError)
    return value


def positive(op, name, value):
    """A count that only tunes another library's kernel, checked as it would be there.

    An array is none: what has values of the device, like a group_offset in the wrong place, would be dropped without a word.
    """
    if export.is_symbolic_dim(value):
        return
    if isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(f"{op}: {name} is an array, expected an integer")
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{op}: {name} = {value!r}, expected an integer")
    if operator.index(value) < 1:
        raise ValueError(f"{op}: {name} = {value}, expected 1 or more")


def precision(op, value, lhs, rhs):
    """0 for f32 accuracy, 1 for tf32. What lax knows beyond these is refused by name.

    None is DEFAULT, whatever jax.default_matmul_precision says.
    """
    one = isinstance(value, lax.DotAlgorithm)  # a tuple by itself
    if isinstance(value, (tuple, list)) and not one:
        if len(value) != 2:
            raise ValueError(f"{op}: precision = {value}, expected one, or one for each operand")
        first, second = (precision(op, each, lhs, rhs) for each in value)
        if first != second:
            raise NotImplementedError(
                f"{op}: precision = {value}, expected the same for both operands"
            )
        return first
    if value is None:
        return 0
    if isinstance(value, str):
        value = _named_precision(op, value)
    if not one and not isinstance(value, (lax.Precision, lax.DotAlgorithmPreset)):
        raise ValueError(f"{op}: precision = {value!r}, expected one that lax knows")
    name = getattr(value, "name", str(value))
    if name in _F32_ACCURACY:
        return 0
    if name in _TF32:
        return 1
    types = lhs.dtype.name, rhs.dtype.name
    if name in _OF_OPERANDS:
        if types == (_OF_OPERANDS[name],) * 2:
            return 0
        raise NotImplementedError(
            f"{op}: precision = {name} with operands of {' and '.join(types)}, "
            f"expected operands of {_OF_OPERANDS[name]}"
        )
    known = (*_F32_ACCURACY, *_TF32, *_OF_OPERANDS)
    raise NotImplementedError(f"{op}: precision = {name}, expected one of {', '.join(known)}")


def _named_precision(op, name):
    try:
        return lax.Precision(name)
    except ValueError:
        pass
    try:
        return lax.DotAlgorithmPreset[name]
    except KeyError:
        raise ValueError(f"{op}: precision = {name!r}, expected one that lax knows") from None
