#!/usr/bin/env python3
"""Checks small mechanical rules of this project's files, one line for each offence.

A file is about one thing and says so in its first line; nothing is marked as left to do, skipped or
switched off; nothing names the machine it was written on; only the command line ends the process.
"""
import argparse
import os
import pathlib
import re
import sys

MAX_LINES = 450
MAX_COLUMNS = 100
TREES = ("include", "src", "tests", "tools", "scripts", "benchmarks", "examples", "cmake", "docs",
         "requirements", ".ci")
CPP = {".h", ".hpp", ".cc", ".cu", ".cuh"}
CODE = CPP | {".py", ".sh", ".cmake"}
WIDE = CPP  # kinds of file that keep to MAX_COLUMNS: those that clang-format lays out
TEXT = CODE | {".md", ".txt", ".json"}
# Words split so that this file does not report itself.
MARKS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
SKIPS = re.compile(r"GTEST_SK" r"IP|\bDISAB" r"LED_|pytest\.(mark\.)?sk" r"ip|xfa" r"il|"
                   r"unittest\.sk" r"ip")
MACHINE = re.compile(r"(?<![\w.$}])/(home|root|opt|mnt|wo" r"rk|Users)/")
ENDS_PROCESS = re.compile(r"(?<![\w.>])(std::|::)?(_?exit|_Exit|quick_exit|abort|terminate)\(")


def first_line_problem(path, lines):
    """A header begins with a comment that says what it is about; so does a script, after #!."""
    first = lines[0] if lines else ""
    if path.suffix in {".h", ".hpp", ".cuh"} and not re.match(r"//\s+\S|/\*", first):
        return "a header's first line is a comment that says what it is about"
    if path.suffix in {".h", ".hpp", ".cuh"} and "#pragma once" not in lines:
        # Highway's -inl.h files are included once for each target, on purpose.
        if not path.name.endswith("-inl.h"):
            return "a header has #pragma once"
    if path.suffix in {".py", ".sh"} and lines:
        rest = [line for line in lines[:3] if not line.startswith("#!")]
        if not rest or not re.match(r'#\s+\S|[rb]?"""\S', rest[0]):
            return "a script begins with a comment that says what it is about"
    return None


def own_header_problem(root, path, lines):
    """A .cc that has a header includes it before any other."""
    parts = path.relative_to(root).parts
    if path.suffix != ".cc" or parts[0] != "src":
        return None
    own = [name for name in ("/".join(parts[1:])[:-3] + ".h", f"ullage/{path.stem}.h")
           if (root / "src" / name).exists() or (root / "include" / name).exists()]
    included = [line.split()[1].strip('"<>') for line in lines if line.startswith("#include ")]
    if own and (not included or included[0] not in own):
        return f"includes its own header first ({own[0]})"
    return None


def line_problem(parts, suffix, line):
    if suffix in CODE and MARKS.search(line):
        return "a mark of something left to do"
    if parts[0] == "tests" and SKIPS.search(line):
        return "a test that is skipped does not exist"
    if suffix != ".md" and MACHINE.search(line):
        return "a path of one machine"
    if suffix in WIDE and len(line) > MAX_COLUMNS and "http" not in line and '"' not in line:  # the formatter breaks no string literals
        return f"{len(line)} columns; at most {MAX_COLUMNS}"
    if suffix in CODE and line != line.rstrip():
        return "white space at the end"
    code = line.split("//")[0]
    if parts[0] == "src" and parts[1] != "cli" and suffix in CPP and ENDS_PROCESS.search(code):
        return "only the room cli ends the process; throw an error of ullage/error.h"
    if parts[0] == "tests" and suffix in CPP and "__FI" "LE__" in code:
        return "a compiler cache makes this path relative; pass the folder from CMake"
    return None


def files(root):
    for path in sorted(root.iterdir()):
        if path.is_file() and path.suffix in TEXT:
            yield path
    for tree in TREES:
        for folder, folders, names in os.walk(root / tree):
            folders[:] = sorted(f for f in folders if f != "__pycache__" and not f.startswith("."))
            for name in sorted(names):
                path = pathlib.Path(folder) / name
                if path.suffix in TEXT or path.name == "CMakeLists.txt":
                    yield path


def problems(root):
    found = []
    for path in files(root):
        parts = path.relative_to(root).parts
        name = "/".join(parts)
        lines = path.read_text().split("\n")
        suffix = ".cmake" if path.name == "CMakeLists.txt" else path.suffix
        if "gloo_shim" in parts:
            continue  # stands in for headers of another project, in that project's form
        if suffix in CODE and len(lines) > MAX_LINES:
            found.append(f"{name}: {len(lines)} lines; at most {MAX_LINES}, about one thing")
        for why in (first_line_problem(path, lines), own_header_problem(root, path, lines)):
            if why:
                found.append(f"{name}:1: {why}")
        for number, line in enumerate(lines, 1):
            why = line_problem(parts, suffix, line)
            if why:
                found.append(f"{name}:{number}: {why}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    found = problems(parser.parse_args().root)
    print("\n".join(found) or "style holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
