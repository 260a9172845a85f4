"""Random calls: any axis of any operand mapped over, and any dimension numbers that lax knows."""

import math

import cadre.jax as cj
import jax
import jax.numpy as jnp
import jax_oracle as oracle
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax


def sizes_within(draw, entries, length, num_groups):
    """[entries, num_groups] of which every row sums up to at most `length`."""
    ends = [sorted(draw(st.integers(0, length)) for _ in range(num_groups)) for _ in range(entries)]
    ends = np.array(ends, np.int64).reshape(entries, num_groups)
    return np.diff(ends, axis=1, prepend=0)


def mapped_operand(seed, shape, batch, axis):
    """Of this shape, with the batch dim at `axis`, which may be negative or None."""
    if axis is not None:
        shape = list(shape)
        shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, batch)
    return oracle.normal(seed, *shape)


@settings(max_examples=oracle.examples(10), deadline=None)
@given(st.data())
def test_any_axis_of_any_operand_mapped_over(data):
    draw = data.draw
    batch, m, k, n = draw(st.integers(0, 3)), *(draw(st.integers(0, 9)) for _ in range(3))
    num_groups = draw(st.integers(1, 4))
    local, transposed = draw(st.integers(0, num_groups)), draw(st.booleans())
    shapes = [(m, k), (local, n, k) if transposed else (local, k, n), (local, n), (m, n)]
    axes = [draw(st.sampled_from([None, *range(-len(s) - 1, len(s) + 1)])) for s in shapes]
    args = [mapped_operand(i, s, batch, a) for i, (s, a) in enumerate(zip(shapes, axes))]
    sizes, offsets = sizes_within(draw, batch, m, num_groups), np.zeros(batch, np.int32)
    offsets[:] = [draw(st.integers(0, num_groups - local)) for _ in range(batch)]

    def ours(lhs, rhs, bias, kept, sizes, offset):
        return cj.gmm(
            lhs,
            rhs,
            sizes,
            transpose_rhs=transposed,
            bias=bias,
            group_offset=offset,
            existing_out=kept,
        )

    def expected(lhs, rhs, bias, kept, sizes, offset):
        inside = oracle.membership(m, sizes, offset, local).any(1)[:, None]
        out = oracle.gmm(lhs, rhs, sizes, transposed, offset)
        return jnp.where(inside, out + oracle.bias_rows(m, bias, sizes, offset), kept)

    axes, operands = (*axes, 0, 0), tuple(range(4))

    def derivatives(product):
        loss = lambda *a: jnp.sin(product(*a)).sum()
        total = lambda *a: jax.vmap(loss, axes)(*a).sum()
        gradients = jax.value_and_grad(total, operands), jax.vmap(jax.grad(loss, operands), axes)
        return [jax.jit(f)(*args, sizes, offsets) for f in gradients]

    oracle.all_close(derivatives(ours), oracle.on_host(derivatives)(expected))


@settings(max_examples=oracle.examples(15), deadline=None)
@given(st.data())
def test_any_dimension_numbers_equal_lax(data):
    draw = data.draw
    mode = draw(st.sampled_from(["m", "k", "b"]))
    dims = {
        name: [draw(st.integers(0, 3)) for _ in range(draw(st.integers(int(name == mode), 2)))]
        for name in "bkmn"
    }
    dims["g"] = [draw(st.integers(0, 3))]

    def operand(seed, names):
        """A random order of the named dims: their places by name, and values."""
        labels = [(name, i) for name in names for i in range(len(dims[name]))]
        order = draw(st.permutations(labels))
        places = {name: [order.index(x) for x in labels if x[0] == name] for name in names}
        return places, oracle.normal(seed, *(dims[name][i] for name, i in order))

    lhs_places, lhs = operand(1, "bkm")
    rhs_places, rhs = operand(2, "bkng" if mode == "m" else "bkn")
    # lax counts the rows in the order of the operand, contracting and batch dims in that of the numbers.
    candidates = sorted(lhs_places["m"]) if mode == "m" else lhs_places[mode]
    position = draw(st.integers(0, len(candidates) - 1))
    ragged = candidates[position]
    numbers = lax.RaggedDotDimensionNumbers(
        tuple((lhs_places[x], rhs_places[x]) for x in "kb"), [ragged], rhs_places.get("g", [])
    )
    outer = ([] if mode == "b" else lhs_places["b"]) + candidates[:position]
    prefix = [lhs.shape[i] for i in outer] if draw(st.booleans()) else []
    sizes = sizes_within(draw, math.prod(prefix), lhs.shape[ragged], dims["g"][0])
    sizes = jnp.asarray(sizes.reshape(*prefix, dims["g"][0]), draw(st.sampled_from(["i4", "u1"])))

    ours = jax.jit(lambda a, b: cj.ragged_dot_general(a, b, sizes, numbers))
    theirs = oracle.on_host(jax.jit(lambda a, b: lax.ragged_dot_general(a, b, sizes, numbers)))
    assert jax.eval_shape(ours, lhs, rhs) == jax.eval_shape(theirs, lhs, rhs)
    expected = theirs(lhs, rhs)
    oracle.close(ours(lhs, rhs), expected)
    # The product is linear in each operand, so <its gradient, x> = <dout, the product with x in its place>. lax has no
    # gradient in every mode.
    dout = oracle.normal(3, *expected.shape)
    bars = jax.jit(jax.grad(lambda a, b: (ours(a, b) * dout).sum(), (0, 1)))(lhs, rhs)
    others = oracle.normal(4, *lhs.shape), oracle.normal(5, *rhs.shape)
    products = theirs(others[0], rhs), theirs(lhs, others[1])
    for bar, other, product in zip(bars, others, products, strict=True):
        assert bar.shape == other.shape
        oracle.close(np.vdot(bar, other), np.vdot(product, dout), 1e-9)
