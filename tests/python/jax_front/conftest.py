"""Four CPU devices and 64-bit types for every test of the JAX front."""

import os

import pytest

pytest.importorskip("jax", reason="JAX is not installed")


def _start_jax_with_four_devices():
    """XLA reads the flag once, when its backend starts; afterwards the environment is as it was."""
    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{before or ''} --xla_force_host_platform_device_count=4".strip()
    try:
        import jax

        jax.config.update("jax_enable_x64", True)
        jax.devices("cpu")
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before


_start_jax_with_four_devices()


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line(
        "markers", "four_devices: needs four devices; CPUs are forced, GPUs not"
    )


def pytest_collection_modifyitems(items):
    import jax

    lacking = {
        "gpu": (jax.default_backend() != "gpu", "no CUDA device"),
        "four_devices": (len(jax.devices()) < 4, "fewer than four devices: set JAX_PLATFORMS=cpu"),
    }
    for item in items:
        for marker, (missing, reason) in lacking.items():
            if missing and marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
