"""The package as it is installed."""

import ast
import pathlib
import subprocess
import sys

import ullage
from ullage import _C

PACKAGE = pathlib.Path(ullage.__file__).resolve().parent


def test_the_stubs_name_what_the_extension_has():
    stubs = ast.parse((PACKAGE / "_C.pyi").read_text())
    named = {}
    for node in stubs.body:
        if isinstance(node, ast.ClassDef):
            names = set()
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    names.add(item.name)
                elif isinstance(item, ast.AnnAssign):
                    names.add(item.target.id)
                elif isinstance(item, ast.Assign):
                    names.add(item.targets[0].id)
            named[node.name] = names - {"__init__"}
        elif isinstance(node, ast.FunctionDef):
            named[node.name] = None
    public = {name for name in dir(_C) if not name.startswith("_")}
    assert public - {"version", "torch_version"} == set(named)
    for name, members in named.items():
        if members is None or name.endswith("Error"):
            continue
        has = {m for m in vars(getattr(_C, name)) if not m.startswith("_")}
        assert has - {"name", "value"} == members - {"name", "value"}, name


def test_another_torch_is_refused_with_both_versions():
    program = (
        "import torch\n"
        "torch.__version__ = '2.9.1+cpu'\n"
        "try:\n"
        "    import ullage\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "built against torch 2.11.0, and this is torch 2.9.1+cpu" in done.stdout


def test_the_extension_is_installed_with_what_the_package_asks(tmp_path):
    build = pathlib.Path(_C.__file__).resolve().parents[2]
    subprocess.run(
        ["cmake", "--install", str(build), "--component", "python", "--prefix", str(tmp_path)],
        check=True,
        capture_output=True,
    )
    installed = {path.name for path in (tmp_path / "ullage").iterdir()}
    assert "_build.py" in installed and any(name.startswith("_C.") for name in installed)
