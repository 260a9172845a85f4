"""pack_weights in the NumPy front: the same bits as without, and errors that name the argument."""

import gc

import cadre
import numpy
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes")


def _layer(dtype, transposed, rows=37, k=24, n=40, groups=3):
    random = numpy.random.default_rng(5)
    lhs = random.standard_normal((rows, k)).astype(dtype)
    shape = (groups, n, k) if transposed else (groups, k, n)
    return lhs, random.standard_normal(shape).astype(dtype), [20, 0, rows - 20]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64, numpy.float16, ml_dtypes.bfloat16])
def test_packed_weights_give_the_same_bits(dtype, transposed):
    lhs, rhs, sizes = _layer(dtype, transposed)
    packed = cadre.pack_weights(rhs, transpose_rhs=transposed)
    expected = cadre.gmm(lhs, rhs, sizes, transpose_rhs=transposed)
    got = cadre.gmm(lhs, rhs, sizes, transpose_rhs=transposed, packed_rhs=packed)
    assert got.tobytes() == expected.tobytes()
    assert packed.size_bytes > 0 and packed.kernel in repr(packed)


def test_a_list_is_packed_as_well():
    lhs, rhs, sizes = _layer(numpy.float32, False)
    packed = cadre.pack_weights(list(rhs))
    got = cadre.gmm(lhs, list(rhs), sizes, packed_rhs=packed)
    assert got.tobytes() == cadre.gmm(lhs, rhs, sizes).tobytes()


def test_packed_weights_are_read_instead_of_rhs():
    lhs, rhs, sizes = _layer(numpy.float32, False)
    expected = cadre.gmm(lhs, rhs, sizes)
    packed = cadre.pack_weights(rhs)
    changed = numpy.zeros_like(rhs)
    assert cadre.gmm(lhs, changed, sizes, packed_rhs=packed).tobytes() == expected.tobytes()


def test_a_forgotten_copy_is_freed():
    _, rhs, _ = _layer(numpy.float32, False)
    packed = cadre.pack_weights(rhs)
    destroy = packed._destroy
    assert destroy.alive
    del packed
    gc.collect()
    assert not destroy.alive


def test_bad_input_is_named():
    lhs, rhs, sizes = _layer(numpy.float32, False)
    with pytest.raises(TypeError, match="gmm: packed_rhs is a ndarray, expected what pack_weights returned"):
        cadre.gmm(lhs, rhs, sizes, packed_rhs=rhs)
    with pytest.raises(ValueError, match=r"gmm: packed_rhs = f32 \[2, k 24, n 40\], expected rhs = f32 \[3, k 24"):
        cadre.gmm(lhs, rhs, sizes, packed_rhs=cadre.pack_weights(rhs[:2]))
    with pytest.raises(ValueError, match=r"pack_weights: rhs.shape = \(24, 40\), expected \[g, k, n\]"):
        cadre.pack_weights(rhs[0])
    with pytest.raises(TypeError, match="pack_weights: lhs_dtype = 'complex64', expected a type that gmm takes"):
        cadre.pack_weights(rhs, lhs_dtype="complex64")
