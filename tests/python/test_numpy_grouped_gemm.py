"""grouped_gemm of NumPy arrays: every group has its own m, n and k, in lists or in one array."""

import cadre
import numpy
import oracle
import pytest

DIMS = [(3, 4, 5), (1, 7, 2), (6, 1, 9), (2, 0, 3), (0, 4, 3), (5, 2, 0), (4, 3, 1)]  # m, k, n of each group


def random_groups(rng, transa, transb, dtype="float64"):
    def matrix(rows, cols, transposed):
        return rng.standard_normal((cols, rows) if transposed else (rows, cols)).astype(dtype)

    a = [matrix(m, k, transa) for m, k, n in DIMS]
    b = [matrix(k, n, transb) for m, k, n in DIMS]
    return a, b


def check(products, a, b, transa=False, transb=False, added=None, compute="float64"):
    for i, product in enumerate(products):
        left, right = (x.astype("f8").T if t else x.astype("f8") for x, t in ((a[i], transa), (b[i], transb)))
        extra = 0 if added is None else added[i]
        expected, magnitude = left @ right + extra, abs(left) @ abs(right) + abs(extra)
        oracle.assert_close(product, expected, magnitude, left.shape[1] + 1, compute)


@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("transb", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_each_group_has_its_own_shape(rng, transa, transb, dtype):
    a, b = random_groups(rng, transa, transb, dtype)
    products = cadre.grouped_gemm(a, b, transa=transa, transb=transb)
    assert [product.shape for product in products] == [(m, n) for m, k, n in DIMS]
    assert {product.dtype for product in products} == {numpy.dtype(dtype)}
    check(products, a, b, transa, transb, compute=dtype)


def test_arrays_give_one_array(rng):
    a, b = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5, 6))
    out = cadre.grouped_gemm(a, b, out_dtype="f4")
    assert out.shape == (3, 4, 6) and out.dtype == numpy.float32
    check(out, a, b)
    numpy.testing.assert_array_equal(cadre.grouped_gemm(list(a), b, out_dtype="f4"), out)


def test_alpha_beta_and_c_of_each_group(rng):
    a, b = random_groups(rng, False, False)
    c = [rng.standard_normal((m, n)) for m, k, n in DIMS]
    alpha, beta = rng.standard_normal(len(DIMS)), rng.standard_normal(len(DIMS))
    products = cadre.grouped_gemm(a, b, alpha=alpha, beta=beta, c=c)
    check(products, [x * s for x, s in zip(a, alpha)], b, added=[x * s for x, s in zip(c, beta)])


def test_d_is_written_in_place_and_added_to(rng):
    a, b = random_groups(rng, False, False)
    d = [numpy.full((m, n), numpy.nan) for m, k, n in DIMS]
    assert cadre.grouped_gemm(a, b, d=d) is d
    check(d, a, b)
    before = [each.copy() for each in d]
    cadre.grouped_gemm(a, b, d=d, accumulate=True)
    check(d, a, b, added=before)


def test_matrices_with_any_strides(rng):
    """Of one stride, of several (these are copied), transposed, broadcast."""
    wide = rng.standard_normal((6, 20))
    same = [wide[:2, :7], wide[3:6, 7:14]]
    several = [wide[:2, :7], rng.standard_normal((3, 14))[:, ::2]]
    transposed = [rng.standard_normal((7, 2)).T, rng.standard_normal((7, 3)).T]
    broadcast = [numpy.broadcast_to(rng.standard_normal(7), (rows, 7)) for rows in (2, 3)]
    b = [rng.standard_normal((7, 5)), rng.standard_normal((7, 4))]
    for a in (same, several, transposed, broadcast):
        check(cadre.grouped_gemm(a, b), a, b)
