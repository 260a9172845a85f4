#!/usr/bin/env python3
"""Lays out what mkdocs builds the site from: the README, docs/, pages that name the functions of the Python packages (mkdocstrings
fills in their docstrings), and the report that was made of the committed results.

usage: site_sources.py FOLDER REPORT

Files keep their places, so that links between them hold. A link to a file of the sources leads to a copy of it in the site;
one to a folder leads to a list of its files.
"""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "bindings" / "python"
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
#: page of the API: (title, modules)
API = {
    "numpy": ("NumPy: cadre", ("cadre",)),
    "torch": ("PyTorch: cadre.torch", ("cadre.torch",)),
    "torch-compat": (
        "PyTorch: drop-ins",
        (
            "cadre.torch.compat.grouped_gemm.ops",
            "cadre.torch.compat.grouped_gemm.backend",
            "cadre.torch.compat.transformer_engine",
            "cadre.torch.compat.transformer_engine_ops",
        ),
    ),
    "torch-integrations": (
        "PyTorch: integrations",
        tuple(f"cadre.torch.integrations.{name}" for name in ("transformers", "vllm", "megatron", "torchtitan")),
    ),
    "torch-expert-parallel": ("PyTorch: cadre.torch.expert_parallel", ("cadre.torch.expert_parallel",)),
    "jax": ("JAX: cadre.jax", ("cadre.jax",)),
    "jax-compat": (
        "JAX: drop-ins and expert_parallel",
        ("cadre.jax.megablox", "cadre.jax.ejkernel", "cadre.jax.maxtext", "cadre.jax.expert_parallel"),
    ),
    "scale": ("On paper: cadre.scale", ("cadre.scale",)),
}


def tracked():
    """Files of the repository, those that are not committed yet, too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).is_file()]


def public_names(module):
    """(names, file): what a module offers, in its own order, from its __all__ or its definitions."""
    folder = PACKAGE.joinpath(*module.split("."))
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    tree = ast.parse(file.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [each for each in ast.literal_eval(node.value) if not each.startswith("_")], tree
    defined = (ast.FunctionDef, ast.ClassDef)
    names = [node.name for node in tree.body if isinstance(node, defined) and node.name[0] != "_"]
    return list(dict.fromkeys(names)), tree


def submodules(module, names):
    """Those of the names that are modules: they have pages of their own."""
    folder = PACKAGE.joinpath(*module.split("."))
    return {name for name in names if (folder / name).is_dir() or (folder / f"{name}.py").is_file()}


def aliases(file):
    """The type aliases of a file as `Name = type`, each below its comment."""
    text = file.read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            above = text.split("\n")[node.lineno - 2]
            if above.startswith("#: "):
                yield above
            yield f"{node.target.id} = {ast.unparse(node.value)}"


def api_page(title, modules):
    lines = [f"# {title}", ""]
    for module in modules:
        names, tree = public_names(module)
        lines += [ast.get_docstring(tree) or "", ""]
        for name in names:
            if name not in submodules(module, names):
                lines += [f"::: {module}.{name}", ""]
        types = PACKAGE.joinpath(*module.split("."), "_types.py")
        if types.is_file():
            lines += ["## The types of arguments", "", "```python", *aliases(types), "```", ""]
    return "\n".join(lines)


def folder_list(folder, files):
    """A page that names the files of a folder, Markdown ones by their titles."""
    lines = [f"# {folder}", ""]
    for name in sorted(each for each in files if str(Path(each).parent) == folder):
        text = (ROOT / name).read_text(errors="replace") if name.endswith(".md") else ""
        title = re.search(r"^# (.*)", text, re.MULTILINE)
        lines.append(f"- [{title[1] if title else Path(name).name}]({Path(name).name})")
    return "\n".join(lines) + "\n"


class Site:
    def __init__(self, target):
        self.target, self.files = target, tracked()
        self.known, self.copied = set(self.files), set()

    def page(self, name, place=None):
        """Copies a Markdown page, with its links led to what the site has."""
        source = ROOT / name

        def followed(match):
            link = match[2]
            if re.match(r"[a-z]+:", link):
                return match[0]
            path = (source.parent / link).resolve()
            inside = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else None
            if inside in self.known and not inside.endswith(".md"):
                self.file(inside)
            elif path.is_dir():
                self.list(inside)
                inside += "/index.md"
            new = inside if place else link + ("/index.md" if path.is_dir() else "")
            return match[1] + ("index.md" if new == "README.md" else new) + match[3]

        text = LINK.sub(followed, source.read_text())
        if not place:
            text = text.replace("](../README.md", "](../index.md").replace("](README.md", "](index.md" if "/" not in name else "](README.md")
        self.write(place or name, text)

    def file(self, name):
        if name not in self.copied:
            self.copied.add(name)
            (self.target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, self.target / name)

    def list(self, folder):
        index = f"{folder}/index.md"
        if index in self.copied:
            return
        self.copied.add(index)
        self.write(index, folder_list(folder, self.files))
        for name in self.files:
            if str(Path(name).parent) == folder and not name.endswith(".md"):
                self.file(name)

    def write(self, name, text):
        (self.target / name).parent.mkdir(parents=True, exist_ok=True)
        (self.target / name).write_text(text)


def main():
    if len(sys.argv) != 3:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        sys.exit(2)
    target, report = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.rmtree(target, ignore_errors=True)
    site = Site(target)
    site.page("README.md", "index.md")
    for name in site.files:
        if name in ("CHANGELOG.md", "CONTRIBUTING.md") or (name.startswith(("docs/", "bench/results/")) and name.endswith(".md")):
            site.page(name)
    site.list("docs/decisions")
    for page, (title, modules) in API.items():
        site.write(f"api/{page}.md", api_page(title, modules))
    shutil.copyfile(report, target / "docs" / "report.html")
    lines = ["# The report of the committed results", ""]
    lines += ["[Open the report](report.html): results of an H200, of a host with AMX and of Zen 4 and 5, every figure with its",
              "file and command. `make report` makes it of `bench/results/`, and [see.md](see.md) says how to make your own.", ""]
    for image in ("report_wide", "report_dark", "report_schedule", "report_phone"):
        site.file(f"docs/images/{image}.png")
        lines += [f"![{image.replace('_', ', ')}](images/{image}.png)", ""]
    site.write("docs/measured.md", "\n".join(lines))
    print(f"{target}: {len(list(target.rglob('*.md')))} pages")


if __name__ == "__main__":
    main()
