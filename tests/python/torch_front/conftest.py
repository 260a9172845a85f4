"""What the tests of the PyTorch front share: a seed, the devices of this machine, a mark for tests that need a GPU."""

import zlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# Every test of an op runs on the CPU, and on the GPU too where there is one.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def seed(request):
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
