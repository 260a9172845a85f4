"""What every Python test shares: a fixed seed for each test, and an environment that no test may leave changed."""

import os
import zlib

import numpy
import pytest

# pytest writes the first while it runs a test, torch the others when it first compiles something.
WRITTEN_BY_OTHERS = (
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
)


@pytest.fixture
def rng(request):
    """A generator of its own for each test, the same in every run."""
    return numpy.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def environment_is_left_as_found():
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    for environment in (before, after):
        for name in WRITTEN_BY_OTHERS:
            environment.pop(name, None)
    changed = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    assert not changed, f"the test left these environment variables changed: {changed}"
