#!/usr/bin/env python3
"""A plain `pip install .`, build isolation and all, gives a package whose fronts work in another environment.

usage: python_package_test.py [--extras] SOURCE_DIR WORK_DIR [SITE_PACKAGES]
--extras: also the PyTorch front, compiled at its first use and then without a compiler, and an editable install.
SITE_PACKAGES: a folder with NumPy, ml_dtypes and, for the PyTorch front, torch; it stands for what the target environment
has installed. Without it the fronts are not imported, and the test says so (exit status 77: skipped).
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

NUMPY = """
import cadre, numpy, sys
assert not {'torch', 'jax'} & set(sys.modules)
lhs, rhs = numpy.random.rand(6, 4), numpy.random.rand(3, 4, 5)
out = cadre.gmm(lhs, rhs, [2, 0, 4])
numpy.testing.assert_allclose(out[2:], lhs[2:] @ rhs[2])
print(cadre.__version__, cadre._library.path)
"""

TORCH = """
import cadre.torch, torch
x, w = torch.rand(6, 4, requires_grad=True), torch.rand(3, 4, 5, requires_grad=True)
y = cadre.torch.gmm(x, w, torch.tensor([2, 0, 4]))
y.sum().backward()
torch.testing.assert_close(y[2:], x[2:] @ w[2])
assert w.grad.shape == w.shape
print(cadre.torch._shim.path)
"""


# Stands for a system that has a C++ compiler and nothing else: CMake finds none of these ...
PACKAGES = ("CLI11", "GTest", "fmt", "nlohmann_json")
NO_OTHER_PACKAGES = [
    word
    for package in PACKAGES
    for word in ("-C", f"cmake.define.CMAKE_DISABLE_FIND_PACKAGE_{package}=ON")
]
if os.environ.get("CI"):  # as the rest of CI is compiled, so that ccache knows the objects
    NO_OTHER_PACKAGES += ["-C", "cmake.define.CADRE_WERROR=ON"]
    NO_OTHER_PACKAGES += ["-C", f"cmake.define.CMAKE_CXX_COMPILER={shutil.which('c++')}"]
# ... and no file of the library includes them, though they may lie in /usr/include.
HEADERS = ("/CLI/", "/gtest/", "/fmt/", "/nlohmann/")


def check_included_headers(build):
    """Reads what the compiler itself has noted of every file it compiled."""
    included = succeed(["ninja", "-C", str(build), "-t", "deps"]).splitlines()
    found = sorted({line.strip() for line in included if any(name in line for name in HEADERS)})
    assert included and not found, f"the library includes {found}"
    print(f"{len(included)} lines of dependencies, none of {', '.join(PACKAGES)}")


def run(command, **environment):
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CADRE_", "PYTHON"))
    }
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**kept, **environment}, cwd="/"
    )
    return result.returncode, result.stdout, result.stderr


def succeed(command, **environment):
    code, out, err = run(command, **environment)
    assert code == 0, f"{command} failed:\n{out}\n{err}"
    return out.strip()


def environment_in(folder, site_packages):
    """A fresh virtual environment that also sees what is installed in site_packages. Returns its python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    own = Path(
        succeed([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    )
    if site_packages:
        (own / "target-environment.pth").write_text(f"{site_packages}\n")
    return str(python)


def check_metadata(wheel):
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = files.read(metadata).decode()
    assert "cadre/py.typed" in names, names
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Author: cadre contributors"):
        assert line in text.splitlines(), text


def check_command(python):
    """The command that the wheel installs, and the same through `python -m`."""
    command = str(Path(python).with_name("cadre"))
    version = succeed([python, "-c", "import cadre; print(cadre.__version__)"])
    assert succeed([command, "--version"]) == version
    assert succeed([python, "-m", "cadre", "--version"]) == version
    print("command:", succeed([command, "verify", "--cases", "20"]))
    problem = ["--m", "64", "--k", "32", "--n", "48", "--groups", "4"]
    explained, info = succeed([command, "explain", *problem]), succeed([command, "info"])
    assert "Chosen    cpu/" in explained and info.startswith(f"cadre {version}, ")
    # It was built without nlohmann-json, and says what that costs.
    for said in (explained, info):
        assert "this build reads no tuning tables: nlohmann-json was missing" in said, said
    assert run([command, "frobnicate"])[0] == 2


def check_compare(python, work):
    """A tiny comparison by the installed command, its page, and a report of its results."""
    command = str(Path(python).with_name("cadre"))
    options = ["--tokens", "24", "--seconds", "1", "--device", "cpu", "--front", "numpy"]
    answer = succeed([command, "compare", "6,2,48,40", *options, "--report", str(work / "mine.html")])
    assert answer.startswith("On this machine a layer of 6 experts"), answer
    assert answer.endswith(f"To look at: {work / 'mine.html'}") and "over cadre" in answer, answer
    said = succeed([python, "-m", "cadre.report", str(work / "mine.json"), "-o", str(work / "report.html")])
    for name in ("mine.html", "report.html"):
        page = (work / name).read_text()
        assert 'class="bars"' in page and "6,2,48,40" in page and "</html>" in page, name
    print("compare:", answer.splitlines()[0], said)


def check_torch(python, cache):
    without_compiler = {"PATH": "/nonexistent", "XDG_CACHE_HOME": str(cache), "CXX": ""}
    code, _, err = run([python, "-c", TORCH], **without_compiler)
    last = err.strip().splitlines()[-1]
    assert (
        code != 0 and last.startswith("ImportError: cadre.torch:") and "no C++ compiler" in last
    ), err
    print(
        "torch front, compiled at first use:",
        succeed([python, "-c", TORCH], XDG_CACHE_HOME=str(cache)),
    )
    assert list(cache.rglob("cadre_torch.so"))
    # From the cache: no compiler is needed any more.
    print("torch front, from the cache:", succeed([python, "-c", TORCH], **without_compiler))


def check_editable(source, work, build, site_packages):
    editable = environment_in(work / "editable", site_packages)
    pip = [editable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
    succeed([*pip, "-C", f"build-dir={build}", *NO_OTHER_PACKAGES, "--editable", str(source)])
    print("editable:", succeed([editable, "-c", NUMPY]))


def main():
    extras = "--extras" in sys.argv
    source, work, *site_packages = (Path(word) for word in sys.argv[1:] if word != "--extras")
    site_packages = site_packages[0] if site_packages else None
    # As deep as build/release: paths that are relative to the build folder are the same, and ccache knows the objects.
    build = source / "build" / ("wheel-extras" if extras else "wheel-test")
    for folder in (work, build):
        shutil.rmtree(folder, ignore_errors=True)
    work.mkdir(parents=True)
    python = environment_in(work / "plain", site_packages)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--wheel-dir", str(work / "dist"), "-C", f"build-dir={build}"]
    succeed([*pip, "wheel", *options, *NO_OTHER_PACKAGES, str(source)])
    check_included_headers(build)
    (wheel,) = (work / "dist").glob("*.whl")
    assert wheel.name.startswith("cadre_gmm-") and "-py3-none-" in wheel.name, wheel.name
    check_metadata(wheel)
    succeed([*pip, "install", "--no-deps", str(wheel)])
    print("installed", wheel.name)
    if site_packages is None or not (site_packages / "numpy").is_dir():
        print("no NumPy in the target environment: the fronts are not tested")
        sys.exit(77)
    check_command(python)
    check_compare(python, work)
    print("numpy front:", succeed([python, "-c", NUMPY]))
    if extras:
        with tempfile.TemporaryDirectory() as cache:
            check_torch(python, Path(cache))
        check_editable(source, work, build, site_packages)


if __name__ == "__main__":
    main()
