"""The contenders of jax_ragged_dot.py, each a function of (lhs, rhs, sizes, dout), and the operands that they are given."""

import functools

import cadre.jax
import jax
import jax.numpy as jnp
import layers
import libcadre_call
import numpy as np
from jax import lax

GPU_SHAPES = {**layers.TRAINING, **layers.DECODE}
CPU_SHAPES = {"8 experts": (8, 512, 512, 512), "64 experts": (64, 512, 512, 512)}
CASES = ("forward", "dlhs", "drhs")
#: The quick ones first: a run may end before the others' turn.
RIVALS = ("mosaic", "lax_untuned", "lax")
#: Calls in one program, too few for a command buffer.
IN_PROGRAM = 4
#: Triton's gemms take XLA seconds to tune, for each product.
BY_CUBLAS = {"xla_gpu_enable_triton_gemm": False}
#: cuBLAS's own choice. XLA's is made by trial: of lax's ragged_dot, a dense product for each expert, that takes minutes.
UNTUNED = {**BY_CUBLAS, "xla_gpu_autotune_level": 0}


@functools.cache
def on_gpu():
    """Takes the GPU for this process."""
    return jax.default_backend() == "gpu"


def shapes_here():
    return GPU_SHAPES if on_gpu() else CPU_SHAPES


def route(experts, rows, skew, seed=0):
    """Rows of each expert when every row draws its expert with probability 1 / rank^skew, ranks dealt at random."""
    random = np.random.default_rng(seed)
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    return random.multinomial(rows, random.permutation(weights / weights.sum()))


def kinds_of(shape, dtype):
    """The shapes and types of lhs [m, k], rhs [g, k, n], group sizes, dout [m, n]."""
    experts, m, k, n = shape
    kinds = (((m, k), dtype), ((experts, k, n), dtype), ((experts,), jnp.int32), ((m, n), dtype))
    return [jax.ShapeDtypeStruct(*kind) for kind in kinds]


@functools.cache
def _maker(shape, dtype):
    """Compiled by itself, so that this can be done before the operands are needed."""
    lhs, rhs, _, dout = kinds_of(shape, dtype)

    @jax.jit
    def make(seed):
        keys = jax.random.split(jax.random.key(seed), 3)
        weights = jax.random.normal(keys[1], rhs.shape, dtype) * jnp.asarray(
            shape[2] ** -0.5, dtype
        )
        return (
            jax.random.normal(keys[0], lhs.shape, dtype),
            weights,
            jax.random.normal(keys[2], dout.shape, dtype),
        )

    return make.lower(np.uint32(0)).compile()


def compile_operands(shape, dtype):
    _maker(shape, dtype)


def operands(shape, dtype, skew, seed=0):
    """lhs, rhs, group sizes and dout of these kinds."""
    lhs, rhs, dout = jax.block_until_ready(_maker(shape, dtype)(np.uint32(seed)))
    return lhs, rhs, jnp.asarray(route(shape[0], shape[1], skew, seed), jnp.int32), dout


def mosaic_gpu(lhs, rhs, sizes):
    """Pallas's kernel in the configuration that its own file finds best on most shapes."""
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu

    settings = {"block_m": 128, "block_n": 128, "block_k": 64, "max_concurrent_steps": 4}
    return ragged_dot_mgpu.ragged_dot(lhs, rhs, group_sizes=sizes, grid_block_n=8, **settings)


def of_case(product, case, compiler_options=None):
    """The product or one of its gradients."""

    def forward(lhs, rhs, sizes, dout):
        return product(lhs, rhs, sizes)

    def dlhs(lhs, rhs, sizes, dout):
        return jax.vjp(lambda x: product(x, rhs, sizes), lhs)[1](dout)[0]

    def drhs(lhs, rhs, sizes, dout):
        return jax.vjp(lambda x: product(lhs, x, sizes), rhs)[1](dout)[0]

    functions = {"forward": forward, "dlhs": dlhs, "drhs": drhs}
    return jax.jit(functions[case], compiler_options=compiler_options)


def program(case):
    """Several calls in one program, as a layer has them: what XLA adds to each run of a program is shared."""
    one, copies = of_case(cadre.jax.ragged_dot, case), []
    several = jax.jit(lambda lhs, rhs, dout, *sizes: [one(lhs, rhs, s, dout) for s in sizes])

    def call(lhs, rhs, sizes, dout):
        if not copies:  # of sizes of one array, XLA would make one call
            copies.extend(jnp.array(sizes, copy=True) for _ in range(IN_PROGRAM))
        return several(lhs, rhs, dout, *copies)[-1]

    return call


def dense(case):
    """One product of the same m, k and n, with the first expert's weights; on a GPU cuBLAS's."""
    product = {
        "forward": lambda lhs, rhs, sizes, dout: lhs @ rhs[0],
        "dlhs": lambda lhs, rhs, sizes, dout: dout @ rhs[0].T,
        "drhs": lambda lhs, rhs, sizes, dout: lhs.T @ dout,
    }[case]
    return jax.jit(product, compiler_options=BY_CUBLAS if on_gpu() else None)


def rivals(case):
    """name -> function, of those that there are here for this case."""
    everyone = {"lax": of_case(lax.ragged_dot, case)}
    if on_gpu():
        everyone["lax_untuned"] = of_case(lax.ragged_dot, case, UNTUNED)
    if on_gpu() and case == "forward":
        everyone["mosaic"] = of_case(mosaic_gpu, case)
    return everyone


def contenders(case, without):
    """name -> function. The program makes IN_PROGRAM calls at once."""
    everyone = {
        "cadre": of_case(cadre.jax.ragged_dot, case),
        "program": program(case),
        "library": libcadre_call.Case(case),
        "dense": dense(case),
        **rivals(case),
    }
    return {name: function for name, function in everyone.items() if name not in without}
