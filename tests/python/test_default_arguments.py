"""Default arguments are evaluated once: none may be mutable or the result of a call (a random key, an array, a list)."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "bindings" / "python" / "cadre"
FILES = sorted(PACKAGE.rglob("*.py"))


def is_constant(node):
    if isinstance(node, ast.UnaryOp):
        return is_constant(node.operand)
    if isinstance(node, ast.Tuple):
        return all(is_constant(element) for element in node.elts)
    # A name or attribute is an object that exists already: an enumerator, a module constant, None.
    return isinstance(node, (ast.Constant, ast.Name, ast.Attribute))


def test_there_are_files_to_look_at():
    assert len(FILES) > 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_defaults_are_constants(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            defaults = node.args.defaults + [
                default for default in node.args.kw_defaults if default is not None
            ]
            bad = [ast.unparse(default) for default in defaults if not is_constant(default)]
            assert not bad, f"line {node.lineno}: {bad}"


@pytest.mark.parametrize(
    "code, constant",
    [
        ("[]", False),
        ("{}", False),
        ("jax.random.key(0)", False),
        ("(1, [])", False),
        ("()", True),
        ("-1", True),
        ("None", True),
        ("Tail.ZERO", True),
        ("(1, 2)", True),
    ],
)
def test_the_check_can_fail(code, constant):
    assert is_constant(ast.parse(code, mode="eval").body) is constant
