"""Processes: a call after a fork, where threads can't be started, and while nothing is called.

Each runs in an interpreter of its own with a time limit, so that a hang is a failure.
"""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

# A product that is large enough for two threads, the bytes of its result, and the same in one thread.
PRELUDE = """
import os, sys
import cadre, numpy
rng = numpy.random.default_rng(5)
lhs = rng.standard_normal((96, 160), dtype=numpy.float32)
rhs = rng.standard_normal((3, 160, 136), dtype=numpy.float32)
def product(_=None):
    return cadre.gmm(lhs, rhs, [40, 0, 56]).tobytes()
"""


def run(code, **environment):
    """stdout of the code in a fresh interpreter; it must end well and print nothing to stderr."""
    settings = {"CADRE_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1", **environment}
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        check=False,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr + result.stdout
    return result.stdout


def test_forked_child_computes_the_same_bits():
    run(
        """
        expected = product()
        for _ in range(3):
            child = os.fork()
            if child == 0:
                os._exit(0 if product() == expected and product() == expected else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert product() == expected
        """
    )


def test_child_of_a_forked_child_too():
    run(
        """
        expected = product()
        def check(depth):
            child = os.fork()
            if child == 0:
                good = product() == expected and (depth == 0 or check(depth - 1))
                os._exit(0 if good else 1)
            return os.waitpid(child, 0)[1] == 0
        assert check(2)
        """
    )


def test_fork_while_other_threads_are_in_a_call():
    run(
        """
        import threading, time, warnings
        warnings.simplefilter("ignore")  # newer Pythons warn of a fork with threads
        expected = product()
        over = False
        def keep_calling():
            while not over:
                assert product() == expected
        threads = [threading.Thread(target=keep_calling) for _ in range(2)]
        for thread in threads: thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if product() == expected else 1)
            assert os.waitpid(child, 0)[1] == 0
        over = True
        for thread in threads: thread.join()
        """
    )


def test_multiprocessing_pool_after_a_call():
    run(
        """
        import multiprocessing
        expected = product()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(product, range(8)) == [expected] * 8
        """
    )


def test_child_forked_before_the_first_call_has_threads():
    """Nothing is lost there, so it works as any process does."""
    count = "len(os.listdir('/proc/self/task'))"
    run(
        f"""
        child = os.fork()
        if child == 0:
            product()
            os._exit(0 if {count} == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        """
    )


@pytest.fixture(scope="module")
def refusing_threads(tmp_path_factory):
    """A library to preload with which no thread can be created; root isn't held to RLIMIT_NPROC."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "no C++ compiler to build the preloaded library with"
    folder = tmp_path_factory.mktemp("refusing_threads")
    source = folder / "refuse.cc"
    source.write_text(
        """
        #include <cerrno>
        #include <pthread.h>
        extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
          return EAGAIN;
        }
        """
    )
    library = folder / "refuse.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return str(library)


def test_no_threads_to_be_had(refusing_threads):
    code = """
        import hashlib
        print(hashlib.sha256(product()).hexdigest(), len(os.listdir('/proc/self/task')))
        """
    few, tasks = run(code, CADRE_NUM_THREADS="8", LD_PRELOAD=refusing_threads).split()
    assert tasks == "1"
    many, tasks = run(code, CADRE_NUM_THREADS="8").split()
    assert tasks == "8"
    assert few == many


def test_idle_process_uses_no_cpu():
    used = run(
        """
        import time
        for _ in range(20): product()
        before = time.process_time()
        time.sleep(1)
        print(time.process_time() - before)
        """,
        CADRE_NUM_THREADS="4",
    )
    assert float(used) < 0.2
