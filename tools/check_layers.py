#!/usr/bin/env python3
"""Checks that #include lines respect the order of the rooms.

The order is read from src/CMakeLists.txt (lowest first) and the rooms' own CMakeLists.txt (DEPS,
TORCH), so there is no second list to keep in step. Also refuses the headers that no file may
include, and keeps the parts of torch that change between versions in the room that owns them.
"""
import argparse
import pathlib
import re
import sys

BANNED = {"torch/torch.h": "include the narrow header you need",
          "torch/all.h": "include the narrow header you need",
          "torch/extension.h": "the python binding uses torch/csrc/utils/pybind.h",
          "ATen/ATen.h": "use ATen/core/Tensor.h and ATen/ops/<op>.h"}
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
# Header families that change between torch versions, and the rooms that own each. The first
# prefix that matches holds; no rooms means that every room may.
OWNED = {"torch/csrc/distributed/": {"comm"},
         "torch/csrc/autograd/custom_function.h": set(),  # anyone's own backward
         "torch/csrc/autograd/autograd.h": {"torchx", "activations"},  # gradients in a backward
         "torch/csrc/autograd/": {"torchx"},
         "torch/csrc/cuda/memory_snapshot.h": {"memory"},
         "torch/csrc/": {"torchx"},
         "torch/library.h": {"torchx"},
         "torch/version.h": {"torchx"},
         "ATen/core/dispatch/": {"torchx"},
         "ATen/cuda/CUDAEvent.h": {"torchx"},
         "c10/cuda/CUDACachingAllocator.h": {"torchx"},
         "c10/cuda/CUDAStream.h": {"torchx"}}
SUFFIXES = {".h", ".hpp", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


class Rooms:
    """The rooms in order, lowest first; what each may include; which see torch."""

    def __init__(self, root):
        text = (root / "src/CMakeLists.txt").read_text()
        listed = re.findall(r"^\s*add_subdirectory\((\w+)\)", text, re.M)
        for names in re.findall(r"^\s*foreach\(\w+ ([\w\s]+?)\)", text, re.M):
            listed += names.split()
        self.order, self.deps, self.torch = [], {}, set()
        for room in listed:
            cmake = root / "src" / room / "CMakeLists.txt"
            if not cmake.exists():
                continue
            words = re.search(r"^ullage_room\(" + room + r"\b([^)]*)\)", cmake.read_text(), re.M)
            if not words:
                sys.exit(f"{cmake}: no call of ullage_room({room} ...)")
            words, names, taking = words.group(1).split(), set(), False
            for word in words:
                if word in {"DEPS", "LIBS", "SOURCES", "TORCH"}:
                    taking = word == "DEPS"
                elif taking:
                    names.add(word)
            self.order.append(room)
            self.deps[room] = names
            if "TORCH" in words:
                self.torch.add(room)

    def below(self, room):
        """The room, and every room that its DEPS reach: what its test binary links."""
        found, left = set(), [room]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self.deps.get(name, ())
        return found


def owner_problem(room, target):
    for prefix, owners in OWNED.items():
        if target.startswith(prefix):
            allowed = not owners or room in owners
            return None if allowed else f"only room '{', '.join(sorted(owners))}' includes {prefix}"
    return None


def include_problem(rooms, parts, target):
    """Why the file at `parts` (its path from the root) may not include `target`, or None."""
    first = target.split("/")[0] if "/" in target else None  # <memory> is not the room
    is_torch = target.startswith(TORCH)
    tree, room = parts[0], parts[1]
    if target in BANNED and tree != "tests":
        return BANNED[target]
    if tree == "include":
        if is_torch:
            return "public headers forward-declare torch types"
        return "public headers include no room" if first in rooms.order else None
    if tree == "tests":
        if room in rooms.order and first in rooms.order and first not in rooms.below(room):
            return f"the tests of '{room}' may not reach up to '{first}'"
        return None
    if room not in rooms.order:
        return None  # reported once, as a room that is not listed
    if first in rooms.order and first != room and first not in rooms.deps[room]:
        return f"room '{room}' does not list '{first}' in DEPS"
    if is_torch and (room not in rooms.torch or parts[-1].endswith((".cu", ".cuh"))):
        return "no torch headers here"
    return owner_problem(room, target)


def problems(root):
    rooms = Rooms(root)
    found = [f"src/{path.name}: not listed in src/CMakeLists.txt, or has no CMakeLists.txt"
             for path in sorted((root / "src").iterdir())
             if path.is_dir() and path.name not in rooms.order]
    for tree in ("include", "src", "tests"):
        for path in sorted((root / tree).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            parts = path.relative_to(root).parts
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                why = match and include_problem(rooms, parts, match.group(1))
                if why:
                    found.append(f"{'/'.join(parts)}:{number}: {match.group(1)}: {why}")
    return rooms, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    rooms, found = problems(parser.parse_args().root)
    print("\n".join(found) or f"layers hold: {' < '.join(rooms.order)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
