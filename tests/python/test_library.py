"""How the library is found, that the ctypes structs are the header's, and DLPack views."""

import ctypes
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cadre
import numpy
import pytest
from cadre import _dlpack, _structs
from cadre._library import new, package_directories

ROOT = Path(__file__).resolve().parents[2]


def run_python(code, tmp_path, **environment):
    """A fresh interpreter with a copy of the package that has no lib/ beside it."""
    package = tmp_path / "cadre"
    if not package.exists():
        shutil.copytree(
            package_directories()[0], package, ignore=shutil.ignore_patterns("lib", "__pycache__")
        )
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CADRE_", "PYTHON"))
    }
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command,
        check=False,
        env={**kept, "PYTHONPATH": str(tmp_path), **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


def test_missing_library_names_both_places(tmp_path):
    result = run_python("import cadre", tmp_path)
    assert result.returncode != 0
    message = result.stderr.strip().splitlines()[-1]
    assert message.startswith("ImportError: cadre:")
    assert "CADRE_LIBRARY" in message and str(tmp_path / "cadre" / "lib") in message


def test_cadre_library_comes_first(tmp_path):
    result = run_python(
        "import cadre; print(cadre._library.path)", tmp_path, CADRE_LIBRARY=str(cadre._library.path)
    )
    assert Path(result.stdout.strip()) == cadre._library.path.resolve(), result.stderr


@pytest.mark.parametrize(
    "content, message", [(None, "is not a file"), ("no library", "can't be loaded")]
)
def test_wrong_library_is_an_import_error(tmp_path, content, message):
    wrong = tmp_path / "wrong.so"
    if content:
        wrong.write_text(content)
    result = run_python("import cadre", tmp_path, CADRE_LIBRARY=str(wrong))
    assert (
        "ImportError" in result.stderr and message in result.stderr and str(wrong) in result.stderr
    )


def test_import_needs_no_framework(tmp_path):
    code = "import sys, cadre; print(sorted({'torch', 'jax'} & set(sys.modules)))"
    result = run_python(code, tmp_path, CADRE_LIBRARY=str(cadre._library.path))
    assert result.stdout.strip() == "[]", result.stderr


@pytest.mark.parametrize(
    "framework, advice",
    [("torch", "pip install 'torch>=2.11'"), ("jax", "pip install 'jax>=0.10'")],
)
def test_missing_framework_is_an_import_error_that_says_what_to_do(tmp_path, framework, advice):
    code = f"import sys; sys.modules[{framework!r}] = None; import cadre.{framework}"
    result = run_python(code, tmp_path, CADRE_LIBRARY=str(cadre._library.path))
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: cadre.{framework}:") and advice in last


def test_tensors_on_a_gpu_without_the_cuda_backend_say_how_to_get_it():
    """Only shapes are looked at: no such memory exists here."""
    args = cadre._library.new(_structs.GmmArgs)
    device = _structs.Device(_structs.CUDA, 0)

    def view(address, *shape):
        tensor = _structs.Tensor(data=address, dtype=_structs.F32, device=device, rank=len(shape))
        for axis in range(len(shape)):
            tensor.shape[axis] = shape[axis]
            tensor.strides[axis] = math.prod(shape[axis + 1 :])
        return tensor

    def grouped(tensor):
        return ctypes.pointer(
            cadre._library.library.cadre_grouped_from_tensor(ctypes.byref(tensor))
        )

    args.lhs = ctypes.pointer(view(1 << 40, 6, 4))
    args.rhs, args.out = grouped(view(1 << 41, 3, 4, 5)), grouped(view(1 << 42, 6, 5))
    args.group_sizes = _structs.Sizes(1 << 43, _structs.I32, device, 3)
    size = ctypes.c_size_t()
    code = cadre._library.library.cadre_gmm_workspace_size(
        cadre._library.context(), ctypes.byref(args), ctypes.byref(size)
    )
    if code == _structs.OK or b"; cuda: " in cadre._library.library.cadre_status_message():
        pytest.skip("this libcadre has the CUDA backend")
    with pytest.raises(NotImplementedError, match="built without CUDA: .*CADRE_CUDA=ON"):
        cadre._library.check(code)


def test_structs_are_those_of_the_header(tmp_path):
    lines = [
        "#include <stdio.h>",
        "#include <stddef.h>",
        '#include "cadre/c_api.h"',
        "int main(void) {",
    ]
    expected = []
    for struct, (name, _) in _structs.C_NAMES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            expected.append(f"{name}.{field} {getattr(struct, field).offset}")
    for constant in (
        "F64",
        "E8M0",
        "I16",
        "U8",
        "U16",
        "U64",
        "ROWS",
        "PACKED",
        "CUDA",
        "INTERNAL",
        "TAIL_FORBID",
        "PRECISION_TF32",
    ):
        lines.append(f'printf("{constant} %d\\n", CADRE_{constant});')
        expected.append(f"{constant} {getattr(_structs, constant)}")
    source = tmp_path / "offsets.c"
    source.write_text("\n".join([*lines, "return 0;", "}"]))
    program = tmp_path / "offsets"
    subprocess.run(
        ["cc", "-std=c11", f"-I{ROOT / 'include'}", str(source), "-o", str(program)], check=True
    )
    printed = subprocess.run(
        [str(program)], check=True, capture_output=True, text=True
    ).stdout.split("\n")[:-1]
    assert printed == expected


def test_defaults_come_from_the_library():
    args = new(_structs.GmmArgs)
    assert args.struct_size == ctypes.sizeof(_structs.GmmArgs)
    assert (args.alpha, args.beta, args.tail, bool(args.lhs)) == (
        1.0,
        0.0,
        _structs.TAIL_ZERO,
        False,
    )


class CpuTensor:
    """Just the DLPack protocol over a NumPy array."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


def test_dlpack_tensors_are_used_in_place(rng):
    array = rng.standard_normal((6, 4))[::2, 1:]
    view = _dlpack.view_of("gmm", "lhs", CpuTensor(array))
    assert view.data == array.ctypes.data
    assert (tuple(view.shape[:2]), tuple(view.strides[:2])) == ((3, 3), (8, 1))
    rhs = rng.standard_normal((2, 3, 5))
    sizes = numpy.array([1, 2])
    out = cadre.gmm(CpuTensor(array), CpuTensor(rhs), CpuTensor(sizes))
    numpy.testing.assert_array_equal(out, cadre.gmm(array, rhs, sizes))


def test_dlpack_tensor_of_another_device_is_refused(rng):
    with pytest.raises(
        ValueError, match=r"gmm: lhs.device = DLPack device \(2, 1\), expected the CPU"
    ):
        cadre.gmm(
            CpuTensor(rng.standard_normal((2, 3)), device=(2, 1)),
            rng.standard_normal((1, 3, 4)),
            [2],
        )
