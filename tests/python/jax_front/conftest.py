"""Where the tests of the JAX front run: on JAX's default device, with four CPU devices and 64-bit types.

JAX_PLATFORMS=cpu or JAX_PLATFORMS=cuda,cpu chooses it. docs/jax.md has the command for a GPU.
"""

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


def _expect_the_asked_for_platform():
    """JAX passes over a platform that it has no plugin for: without a GPU everything would run on the CPU and pass."""
    import jax

    asked_for = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    expected = {"cuda": "gpu", "": jax.default_backend()}.get(asked_for, asked_for)
    if jax.default_backend() != expected:
        raise pytest.UsageError(
            f"JAX_PLATFORMS asks for {asked_for} first, and JAX runs on {jax.default_backend()}"
        )


def _compile_in_haste(config):
    """Without LLVM's expensive passes, for code that runs once. With --slow XLA compiles as it does for users."""
    import jax

    if jax.default_backend() == "cpu" and not config.getoption("--slow"):
        jax.config.update("jax_disable_most_optimizations", True)


_start_jax_with_four_devices()
_expect_the_asked_for_platform()


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.addinivalue_line("markers", "cpu: what a CPU does and a GPU doesn't")
    config.addinivalue_line(
        "markers", "four_devices: needs four devices; CPUs are forced, GPUs not"
    )
    _compile_in_haste(config)


def pytest_report_header():
    import jax

    device = jax.devices()[0]
    return (
        f"jax {jax.__version__} on {len(jax.devices())} x {device.platform} ({device.device_kind})"
    )


def pytest_collection_modifyitems(items):
    import jax

    lacking = {
        "cpu": (jax.default_backend() != "cpu", "a GPU does something else: see test_jax_gpu.py"),
        "gpu": (jax.default_backend() != "gpu", "no CUDA device"),
        "four_devices": (len(jax.devices()) < 4, "fewer than four devices: set JAX_PLATFORMS=cpu"),
    }
    for item in items:
        for marker, (missing, reason) in lacking.items():
            if missing and marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
