"""What every Python test shares: a fixed seed for each test, and an environment that no test may leave changed."""

import os
import zlib

import numpy
import pytest

# pytest writes the first while it runs a test; torch and triton write theirs when they first compile something.
WRITTEN_BY_OTHERS = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TRITON_")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run what only make test-all runs, too")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: minutes long, and deselected without --slow")
    config.addinivalue_line("markers", "smoke: one of the few of a slow suite that .ci/run runs (scripts/smoke.sh)")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    slow = [item for item in items if "slow" in item.keywords]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if "slow" not in item.keywords]


@pytest.fixture
def rng(request):
    """A generator of its own for each test, the same in every run."""
    return numpy.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def environment_is_left_as_found():
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    changed = sorted(
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name) and not name.startswith(WRITTEN_BY_OTHERS)
    )
    assert not changed, f"the test left these environment variables changed: {changed}"
