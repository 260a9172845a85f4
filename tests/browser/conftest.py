"""What the browser's tests are marked with."""


def pytest_configure(config):
    config.addinivalue_line("markers", "smoke: one of the few that .ci/run runs (scripts/smoke.sh)")
