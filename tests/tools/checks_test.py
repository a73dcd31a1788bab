"""The mechanical checks find what they are for: each test plants one offence in a small tree."""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SRC_CMAKE = "add_subdirectory(base)\nadd_subdirectory(torchx)\nadd_subdirectory(cli)\n"


@pytest.fixture
def tree(tmp_path):
    """A tree of three rooms in which every rule holds."""
    write(tmp_path, "src/CMakeLists.txt", SRC_CMAKE)
    write(tmp_path, "src/base/CMakeLists.txt", "ullage_room(base SOURCES bytes.cc)\n")
    write(tmp_path, "src/torchx/CMakeLists.txt",
          "ullage_room(torchx TORCH DEPS base LIBS hwy::hwy SOURCES a.cc)\n")
    write(tmp_path, "src/cli/CMakeLists.txt", "ullage_room(cli DEPS torchx SOURCES main.cc)\n")
    write(tmp_path, "src/base/bytes.h", "// Byte units.\n#pragma once\n#include <memory>\n")
    write(tmp_path, "src/base/bytes.cc", '#include "base/bytes.h"\n')
    write(tmp_path, "src/torchx/a.cc",
          '#include <torch/library.h>\n#include "base/bytes.h"\n')
    write(tmp_path, "src/cli/main.cc", "int main() { std::exit(2); }\n")
    write(tmp_path, "include/ullage/error.h", "// Errors.\n#pragma once\n#include <string>\n")
    write(tmp_path, "tests/base/bytes_test.cc", '#include "base/bytes.h"\n')
    return tmp_path


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run(tool, root):
    done = subprocess.run([sys.executable, ROOT / "tools" / tool, "--root", root],
                          capture_output=True, text=True)
    return done.returncode, done.stdout


def test_a_clean_tree_passes_both_checks(tree):
    assert run("check_layers.py", tree) == (0, "layers hold: base < torchx < cli\n")
    assert run("check_style.py", tree) == (0, "style holds\n")


def test_rooms_are_read_from_a_foreach_too(tree):
    write(tree, "src/CMakeLists.txt", "foreach(room base torchx cli)\n  ullage_add(${room})\n")
    assert run("check_layers.py", tree) == (0, "layers hold: base < torchx < cli\n")


@pytest.mark.parametrize("name, text, found", [
    ("src/base/b.cc", '#include "torchx/a.h"\n', "does not list 'torchx' in DEPS"),
    ("src/cli/b.cc", '#include "base/bytes.h"\n', "does not list 'base' in DEPS"),
    ("src/base/b.cc", "#include <ATen/core/Tensor.h>\n", "no torch headers here"),
    ("src/torchx/b.cu", "#include <ATen/core/Tensor.h>\n", "no torch headers here"),
    ("src/torchx/b.cc", "#include <torch/torch.h>\n", "include the narrow header"),
    ("src/torchx/b.cc", "#include <torch/csrc/distributed/c10d/Store.hpp>\n", "only room 'comm'"),
    ("include/ullage/b.h", "#include <c10/core/Device.h>\n", "forward-declare torch types"),
    ("include/ullage/b.h", '#include "base/bytes.h"\n', "public headers include no room"),
    ("tests/base/b.cc", '#include "torchx/a.h"\n', "may not reach up to 'torchx'"),
    ("src/extra/b.cc", "\n", "not listed in src/CMakeLists.txt"),
])
def test_layers_refuse(tree, name, text, found):
    write(tree, name, text)
    code, output = run("check_layers.py", tree)
    assert code == 1
    assert output.count("\n") == 1 and found in output and name.rsplit("/", 1)[0] in output


@pytest.mark.parametrize("name, text, found", [
    ("src/base/b.cc", "int x;\n" * 451, "at most 450"),
    ("src/base/b.cc", "// TO" "DO: later\n", "left to do"),
    ("src/base/b.cc", "// " + "x" * 98 + "\n", "101 columns"),
    ("src/base/b.cc", "int x; \n", "white space at the end"),
    ("src/base/b.cc", "void f() { std::abort(); }\n", "only the room cli ends the process"),
    ("src/base/bytes.cc", '#include <string>\n#include "base/bytes.h"\n', "its own header first"),
    ("src/base/b.h", "#pragma once\n", "first line is a comment"),
    ("src/base/b.h", "// Something.\nint x;\n", "has #pragma once"),
    ("scripts/b.sh", "#!/bin/sh\necho\n", "a script begins with a comment"),
    ("tests/base/b.cc", "GTEST_SK" "IP();\n", "skipped does not exist"),
    ("tests/base/b.cc", "auto f = __FI" "LE__;\n", "pass the folder from CMake"),
    ("scripts/b.txt", "see /ho" "me/someone/x\n", "a path of one machine"),
])
def test_style_refuses(tree, name, text, found):
    write(tree, name, text)
    code, output = run("check_style.py", tree)
    assert code == 1
    assert output.count("\n") == 1 and found in output and name in output
