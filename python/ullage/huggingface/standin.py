"""A package `deepspeed` with the names that transformers and accelerate use, backed by this engine.

A finder at the front of sys.meta_path answers for the package and its version, also where the real
one is installed. A name that is not here is refused with a hint, never passed on to the real one.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import logging
import sys

from ullage import _C

log = logging.getLogger("ullage")

# Both libraries ask for a version; theirs decides which calls they make. That of the interface
# which initialize and Engine follow.
VERSION = "0.19.8+ullage"


class _Distribution(importlib.metadata.Distribution):
    def read_text(self, filename):
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {VERSION}\n"
        return None

    def locate_file(self, path):
        raise FileNotFoundError(f"the stand-in for deepspeed has no file {path}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != "deepspeed" and not fullname.startswith("deepspeed."):
            return None
        from ullage.huggingface import names

        if fullname not in names.MODULES:
            raise ModuleNotFoundError(
                f"{fullname} is not offered: ullage stands in for deepspeed here, with the modules "
                "that Trainer and accelerate use\nhint: remove the import, or do not call "
                "ullage.enable_for_transformers()",
                name=fullname,
            )
        is_package = any(name.startswith(fullname + ".") for name in names.MODULES)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        from ullage.huggingface import names

        vars(module).update(names.MODULES[module.__name__])
        vars(module).setdefault("__getattr__", _refuser(module.__name__))
        for name in names.MODULES:
            if name.rpartition(".")[0] == module.__name__:
                importlib.import_module(name)

    @staticmethod
    def find_distributions(context=None):
        name = getattr(context, "name", None)
        return [_Distribution()] if name == "deepspeed" else []


def _refuser(module):
    def refuse(name):
        raise AttributeError(
            f"{module}.{name} is not offered: ullage stands in for deepspeed here\nhint: "
            "docs/python.md lists what Trainer and accelerate use; the rest has a name in ullage"
        )

    return refuse


def install():
    """Puts the finder in place. Raises StateError when the real deepspeed is imported already."""
    loaded = sys.modules.get("deepspeed")
    if loaded is not None:
        raise _C.StateError(
            f"deepspeed {getattr(loaded, '__version__', '')} is imported already\nhint: call "
            "ullage.enable_for_transformers() before anything imports deepspeed"
        )
    real = _version("deepspeed")
    sys.meta_path.insert(0, _Finder())
    importlib.invalidate_caches()
    if real is not None:
        log.warning(
            "deepspeed %s is installed; in this process ullage stands in for it (import deepspeed "
            "gives the stand-in)",
            real,
        )


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
