"""The primitives of the products and their rules; those of a layer are in _layer.py.

Every operand has `batch_rank` leading batch dims; a batch dim of size 1 is broadcast against the
others. So vmap never copies or loops in Python: its rule adds one batch dim, and the handler walks
the entries. The products are bilinear: jvp gives one product for each tangent, and transposition
gives `gmm` with the other rhs layout and `tgmm`, neither of which moves the weights.

| primitive | operands | result |
|---|---|---|
| gmm_p | lhs [m,k], rhs [g,k,n] or [g,n,k], group_sizes [G], group_offset [], bias [g,n]? | [m,n] |
| tgmm_p | lhs [m,k], rhs [m,n], group_sizes [G], group_offset [] | [g,k,n] |
| bias_grad_p | dy [m,n], group_sizes [G], group_offset [] | [g,n] |
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.sharding import PartitionSpec

from . import _arguments, _by_lax, _lowering

gmm_p = Primitive("cadre_gmm")
tgmm_p = Primitive("cadre_tgmm")
bias_grad_p = Primitive("cadre_bias_grad")


def unify(*operands):
    """Operands cast to vary over the same manual axes (shard_map); cotangents are summed back."""
    varying = frozenset().union(*(jax.typeof(x).manual_axis_type.varying for x in operands))
    unified = []
    for operand in operands:
        missing = varying - jax.typeof(operand).manual_axis_type.varying
        unified.append(
            lax.pcast(operand, tuple(sorted(missing)), to="varying") if missing else operand
        )
    return unified


def result_aval(like, batch, shape, dtype):
    """An abstract result that varies as `like` does: a bare shape would lose the manual axes."""
    shape = tuple(batch) + tuple(shape)
    sharding = like.sharding.update(spec=PartitionSpec(*(None,) * len(shape)))
    return like.update(shape=shape, dtype=np.dtype(dtype), weak_type=False, sharding=sharding)


def batch_shape(operands, batch_rank):
    """The broadcast batch dims of all operands."""
    batch = []
    for axis in range(batch_rank):
        sizes = [x.shape[axis] for x in operands]
        batch.append(next((size for size in sizes if size != 1), 1))
    return tuple(batch)


def _summed_axes(operand, cotangent, batch_rank):
    """The batch dims along which the operand was broadcast; `cotangent` is that of the result, which has all of them."""
    shape = operand.aval.shape
    return tuple(i for i in range(batch_rank) if shape[i] == 1 and cotangent.shape[i] != 1)


def cotangent_dtype(operand, cotangent, batch_rank):
    """What the operand's cotangent is computed in: its own type, or that of an accumulator where it is then summed."""
    dtype = operand.aval.dtype
    summed = _summed_axes(operand, cotangent, batch_rank)
    return _arguments.accumulator(dtype) if summed else dtype


def cotangent_of(operand, computed, cotangent, batch_rank):
    """Summed over the batch dims along which the operand was broadcast, and sharded as it is (explicit meshes)."""
    axes = _summed_axes(operand, cotangent, batch_rank)
    if axes:
        computed = jnp.sum(computed, axis=axes, keepdims=True, dtype=computed.dtype)
    computed = computed.astype(operand.aval.dtype)
    sharding = operand.aval.sharding
    sharded = any(axis is not None for axis in sharding.spec)
    return jax.sharding.reshard(computed, sharding) if sharded else computed


# A jvp rule is called where one tangent at least isn't zero.


# ---- gmm -------------------------------------------------------------------------------------


def _gmm_aval(
    lhs, rhs, group_sizes, group_offset, *bias, transpose_rhs, out_dtype, batch_rank, precision
):
    del precision
    n = rhs.shape[batch_rank + (1 if transpose_rhs else 2)]
    batch = batch_shape((lhs, rhs, group_sizes, group_offset, *bias), batch_rank)
    return result_aval(lhs, batch, (lhs.shape[batch_rank], n), out_dtype)


def _gmm_jvp(primals, tangents, **params):
    lhs, rhs, group_sizes, group_offset, *bias = primals
    lhs_dot, rhs_dot, _, _, *bias_dot = tangents
    out = gmm_p.bind(*primals, **params)
    terms = []
    if type(lhs_dot) is not ad.Zero:
        terms.append(gmm_p.bind(lhs_dot, rhs, group_sizes, group_offset, **params))
    if type(rhs_dot) is not ad.Zero:
        terms.append(gmm_p.bind(lhs, rhs_dot, group_sizes, group_offset, **params))
    if bias and type(bias_dot[0]) is not ad.Zero:
        terms.append(_spread(bias_dot[0], lhs, rhs, group_sizes, group_offset, **params))
    return out, functools.reduce(jnp.add, terms)


def _spread(bias, lhs, rhs, group_sizes, group_offset, **params):
    """bias[group(r)] in every local row, zero elsewhere: a product over no inner dim plus the bias."""
    batch_rank = params["batch_rank"]
    empty_lhs = lax.slice_in_dim(lhs, 0, 0, axis=batch_rank + 1)
    inner = batch_rank + (2 if params["transpose_rhs"] else 1)
    empty_rhs = lax.slice_in_dim(rhs, 0, 0, axis=inner)
    return gmm_p.bind(empty_lhs, empty_rhs, group_sizes, group_offset, bias, **params)


def _gmm_transpose(
    cotangent,
    lhs,
    rhs,
    group_sizes,
    group_offset,
    *bias,
    transpose_rhs,
    out_dtype,
    batch_rank,
    precision,
):
    del out_dtype
    lhs_bar = rhs_bar = bias_bar = None
    shared = {"batch_rank": batch_rank, "precision": precision}
    if type(cotangent) is ad.Zero:
        return (None,) * (4 + len(bias))
    if ad.is_undefined_primal(lhs):
        lhs_bar = gmm_p.bind(
            cotangent,
            rhs,
            group_sizes,
            group_offset,
            transpose_rhs=not transpose_rhs,
            out_dtype=cotangent_dtype(lhs, cotangent, batch_rank),
            **shared,
        )
        lhs_bar = cotangent_of(lhs, lhs_bar, cotangent, batch_rank)
    elif ad.is_undefined_primal(rhs):
        first, second = (cotangent, lhs) if transpose_rhs else (lhs, cotangent)
        rhs_bar = tgmm_p.bind(
            first,
            second,
            group_sizes,
            group_offset,
            num_groups=rhs.aval.shape[batch_rank],
            out_dtype=cotangent_dtype(rhs, cotangent, batch_rank),
            **shared,
        )
        rhs_bar = cotangent_of(rhs, rhs_bar, cotangent, batch_rank)
    else:
        bias_bar = bias_grad_p.bind(
            cotangent,
            group_sizes,
            group_offset,
            num_groups=bias[0].aval.shape[batch_rank],
            out_dtype=cotangent_dtype(bias[0], cotangent, batch_rank),
            batch_rank=batch_rank,
        )
        bias_bar = cotangent_of(bias[0], bias_bar, cotangent, batch_rank)
    return (lhs_bar, rhs_bar, None, None) + ((bias_bar,) if bias else ())


# ---- tgmm ------------------------------------------------------------------------------------


def _tgmm_aval(
    lhs, rhs, group_sizes, group_offset, *, num_groups, out_dtype, batch_rank, precision
):
    del precision
    batch = batch_shape((lhs, rhs, group_sizes, group_offset), batch_rank)
    shape = (num_groups, lhs.shape[batch_rank + 1], rhs.shape[batch_rank + 1])
    return result_aval(lhs, batch, shape, out_dtype)


def _tgmm_jvp(primals, tangents, **params):
    lhs, rhs, *groups = primals
    lhs_dot, rhs_dot, _, _ = tangents
    out = tgmm_p.bind(*primals, **params)
    terms = []
    if type(lhs_dot) is not ad.Zero:
        terms.append(tgmm_p.bind(lhs_dot, rhs, *groups, **params))
    if type(rhs_dot) is not ad.Zero:
        terms.append(tgmm_p.bind(lhs, rhs_dot, *groups, **params))
    return out, functools.reduce(jnp.add, terms)


def _tgmm_transpose(
    cotangent, lhs, rhs, group_sizes, group_offset, *, num_groups, out_dtype, batch_rank, precision
):
    del num_groups, out_dtype
    if type(cotangent) is ad.Zero:
        return None, None, None, None
    shared = {"batch_rank": batch_rank, "precision": precision}
    if ad.is_undefined_primal(lhs):
        lhs_bar = gmm_p.bind(
            rhs,
            cotangent,
            group_sizes,
            group_offset,
            transpose_rhs=True,
            out_dtype=cotangent_dtype(lhs, cotangent, batch_rank),
            **shared,
        )
        return cotangent_of(lhs, lhs_bar, cotangent, batch_rank), None, None, None
    rhs_bar = gmm_p.bind(
        lhs,
        cotangent,
        group_sizes,
        group_offset,
        transpose_rhs=False,
        out_dtype=cotangent_dtype(rhs, cotangent, batch_rank),
        **shared,
    )
    return None, cotangent_of(rhs, rhs_bar, cotangent, batch_rank), None, None


# ---- bias_grad -------------------------------------------------------------------------------


def _bias_grad_aval(dy, group_sizes, group_offset, *, num_groups, out_dtype, batch_rank):
    batch = batch_shape((dy, group_sizes, group_offset), batch_rank)
    return result_aval(dy, batch, (num_groups, dy.shape[batch_rank + 1]), out_dtype)


def _bias_grad_jvp(primals, tangents, **params):
    out = bias_grad_p.bind(*primals, **params)
    return out, bias_grad_p.bind(tangents[0], *primals[1:], **params)


def _bias_grad_transpose(
    cotangent, dy, group_sizes, group_offset, *, num_groups, out_dtype, batch_rank
):
    del out_dtype
    if type(cotangent) is ad.Zero:
        return None, None, None
    batch, (m, n) = dy.aval.shape[:batch_rank], dy.aval.shape[batch_rank:]
    ones = (1,) * batch_rank
    lhs, rhs, *_ = unify(
        jnp.zeros(batch + (m, 0), dy.aval.dtype),
        jnp.zeros(ones + (num_groups, 0, n), dy.aval.dtype),
        cotangent,
    )
    dy_bar = gmm_p.bind(
        lhs,
        rhs,
        group_sizes,
        group_offset,
        cotangent,
        transpose_rhs=False,
        out_dtype=cotangent_dtype(dy, cotangent, batch_rank),
        batch_rank=batch_rank,
        precision=0,
    )
    return cotangent_of(dy, dy_bar, cotangent, batch_rank), None, None


# ---- registration ----------------------------------------------------------------------------


def _batch(primitive, operands, axes, *, batch_rank, **params):
    """One more batch dim in front; operands without it get a dim of size 1."""
    moved = [
        jnp.expand_dims(x, 0) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands, axes)
    ]
    results = primitive.bind(*moved, batch_rank=batch_rank + 1, **params)
    return results, [0] * len(results) if primitive.multiple_results else 0


def define_batching(primitive):
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)


@functools.lru_cache(maxsize=1024)
def _jitted(primitive, params):
    return jax.jit(lambda *operands: primitive.bind(*operands, **dict(params)))


def run_compiled(primitive, *operands, **params):
    """Compiled even under jax.disable_jit: there is no other way to run a handler."""
    with jax.disable_jit(False):
        return _jitted(primitive, tuple(sorted(params.items())))(*operands)


def _define(primitive, aval, jvp, transpose, by_lax, attributes, sizes_at=2):
    primitive.def_impl(functools.partial(run_compiled, primitive))
    primitive.def_abstract_eval(aval)
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    define_batching(primitive)
    _lowering.register(primitive, by_lax, attributes, sizes_at)


_define(
    gmm_p,
    _gmm_aval,
    _gmm_jvp,
    _gmm_transpose,
    _by_lax.gmm,
    ("transpose_rhs", "batch_rank", "precision"),
)
_define(tgmm_p, _tgmm_aval, _tgmm_jvp, _tgmm_transpose, _by_lax.tgmm, ("batch_rank", "precision"))
_define(
    bias_grad_p,
    _bias_grad_aval,
    _bias_grad_jvp,
    _bias_grad_transpose,
    _by_lax.bias_grad,
    ("batch_rank",),
    sizes_at=1,
)
