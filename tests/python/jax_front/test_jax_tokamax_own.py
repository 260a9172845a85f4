"""tokamax's own tests of ragged_dot, with cadre as its one implementation; needs requirements/tokamax.txt."""

import functools
from unittest import mock

import cadre.jax as cj
import jax
import jax_oracle as oracle
import pytest

try:
    import chex
    import tokamax
    from absl import flags
    from tokamax._src.ops.ragged_dot import test_base

    # It reads its flags from the command line unless somebody has, and pytest's are none of them.
    flags.FLAGS.mark_as_parsed()
except ModuleNotFoundError as error:
    pytest.skip(
        f'{error.name} is not installed; to run this: make test FRONTS="torch jax tokamax"',
        allow_module_level=True,
    )


cadre_alone = functools.partial(tokamax.ragged_dot, implementation=(cj.ragged_dot,))


class RaggedDotOfCadreTest(test_base.RaggedDotTestBase):
    def __init__(self, *args):
        super().__init__(*args, dot_fn=cadre_alone)

    def setUp(self):
        super().setUp()
        # Where a test names no tolerance, the one that tokamax holds its own kernels to.
        strict = functools.partial(chex.assert_trees_all_close, atol=1e-6)
        self.enter_context(mock.patch.object(chex, "assert_trees_all_close", strict))
        self.enter_context(jax.enable_x64(False))

    def _test_bench(self, spec):
        if spec["lhs"].shape[0] > 8:
            self.skipTest("lax's dense product of this benchmark takes minutes on a CPU")
        super()._test_bench(spec)


# A quick run of its 240 quantised cases takes every twelfth, CADRE_TEST_EXAMPLES=2 all of them.
for number in range(240):
    if number % 12 and oracle.examples(1) == 1:
        setattr(RaggedDotOfCadreTest, f"test_quantized{number}", None)
del test_base.RaggedDotTestBase  # or pytest collects it, too
