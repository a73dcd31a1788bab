"""Models without memory: parameters on the Meta device, whose values each rank reads by range."""

import contextlib
import json
import math
import os

import torch

from ullage import _C

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@contextlib.contextmanager
def empty_init(weights=None):
    """Modules built inside get parameters of no memory; buffers are built as ever.

    weights: a .safetensors file, or a folder with model.safetensors or its index, which has a
    tensor for each parameter under its name in the model. `initialize` then reads on every rank
    only what that rank keeps. Raises IoError for a file that is none.
    """
    files = None if weights is None else SafetensorsFiles(weights)
    original = torch.nn.Module.register_parameter

    def register_parameter(module, name, parameter):
        original(module, name, parameter)
        if parameter is None or parameter.is_meta:
            return
        empty = torch.nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        empty.__dict__.update(parameter.__dict__)
        empty._ullage_source = files
        module._parameters[name] = empty

    torch.nn.Module.register_parameter = register_parameter
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = original


class Source:
    """One tensor of a safetensors file."""

    def __init__(self, path, key, dtype, shape, offset):
        self.path, self.key, self.dtype, self.shape, self.offset = path, key, dtype, shape, offset

    def read(self, first, count):
        """Elements [first, first + count) in row-major order, flat, in the file's dtype."""
        size = self.dtype.itemsize
        data = bytearray(count * size)
        done = 0
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(self.offset + first * size)
                while done < len(data):
                    got = file.readinto(memoryview(data)[done:])
                    if not got:
                        break
                    done += got
        except OSError as error:
            raise _C.IoError(
                f"{self.path}: {error}\nhint: the file is read again by initialize"
            ) from error
        if done < len(data):
            raise _C.IoError(
                f"{self.path}: the tensor '{self.key}' ends {len(data) - done} bytes too early\n"
                "hint: the file is cut off; fetch it again"
            )
        return (
            torch.frombuffer(data, dtype=self.dtype) if count else torch.empty(0, dtype=self.dtype)
        )

    def whole(self):
        return self.read(0, math.prod(self.shape)).reshape(self.shape)

    def of(self, name):
        """As SafetensorsFiles.of; the tensor is known already."""
        return self


class SafetensorsFiles:
    """The tensors of a .safetensors file, or of those that a folder's index names."""

    def __init__(self, path):
        self._path = os.fspath(path)
        self._sources = {}
        for file in _files(self._path):
            self._sources.update(sources_of(file))

    def of(self, name):
        source = self._sources.get(name)
        if source is None:
            raise _C.ConfigError(
                f"{self._path} has no tensor '{name}'\nhint: pass the weights of this model"
            )
        return source


def _files(path):
    if not os.path.isdir(path):
        return [path]
    index = os.path.join(path, "model.safetensors.index.json")
    if not os.path.exists(index):
        return [os.path.join(path, "model.safetensors")]
    with open(index, encoding="utf-8") as file:
        names = json.load(file)["weight_map"].values()
    return [os.path.join(path, name) for name in dict.fromkeys(names)]


def sources_of(path):
    """{name: Source} of a safetensors file's floating-point tensors. Raises IoError."""
    try:
        length = os.path.getsize(path)
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if not 2 <= header_bytes <= length - 8:
                raise ValueError(f"a header of {header_bytes} bytes in a file of {length}")
            header = json.loads(file.read(header_bytes))
        found = {}
        for key, entry in header.items():
            if key == "__metadata__" or entry["dtype"] not in _DTYPES:
                continue
            dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            if end - begin != math.prod(shape) * dtype.itemsize or 8 + header_bytes + end > length:
                raise ValueError(
                    f"'{key}' has the bytes {begin} to {end} and the shape {list(shape)}"
                )
            found[key] = Source(path, key, dtype, shape, 8 + header_bytes + begin)
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _C.IoError(
            f"{path}: no safetensors file: {error}\nhint: check the path, or fetch the file again"
        ) from error


def reader_for(parameters):
    """What the engine reads parameters on the Meta device by, or None where there are none.

    parameters: {name: parameter}. The result is called with (name, shape, first, count) and returns
    a flat fp32 tensor. Raises ConfigError for a parameter that has no values.
    """
    empty = {name: parameter for name, parameter in parameters.items() if parameter.is_meta}
    if not empty:
        return None
    sources, dtypes = {}, {}
    for name, parameter in empty.items():
        origin = getattr(parameter, "_ullage_source", None)
        if origin is None:
            raise _C.ConfigError(
                f"parameter '{name}' is on the Meta device and has no values\nhint: build the model "
                "under ullage.empty_init(weights), or change it after initialize, not before"
            )
        sources[name], dtypes[name] = origin.of(name), parameter.dtype
        if tuple(parameter.shape) != tuple(sources[name].shape):
            raise _C.ConfigError(
                f"parameter '{name}' has the shape {list(parameter.shape)}, in {sources[name].path} "
                f"it has {list(sources[name].shape)}\nhint: pass the weights of this model"
            )

    def read(name, shape, first, count):
        del shape
        # In the model's dtype first: what loading whole would give.
        return sources[name].read(first, count).to(dtypes[name]).float().contiguous()

    return read
