"""from_pretrained at stage 3: weights stay in their files until each rank reads its slices.

transformers builds the model on the Meta device and then takes one tensor of the files after the
other. Those that go into a parameter unchanged are taken as tensors of no memory that know where
their values are. What is put together of several tensors, and buffers, are read as ever.
"""

import contextlib
import contextvars
import weakref

import torch

from ullage import empty

# The config of the run, while its TrainingArguments (or DeepSpeedPlugin) live.
_config = None
_loading = contextvars.ContextVar("loading", default=False)


def remember(config):
    """Takes the place of transformers' own record of the config."""
    global _config
    _config = weakref.ref(config)


def wants_slices():
    """Whether weights will be sliced, so that no rank needs them whole."""
    config = None if _config is None else _config()
    return config is not None and config.is_zero3()


@contextlib.contextmanager
def _load():
    token = _loading.set(True)
    try:
        yield
    finally:
        _loading.reset(token)


def load_model(original, *args, **kwargs):
    """Around PreTrainedModel._load_pretrained_model."""
    load_config = kwargs.get("load_config", args[3] if len(args) > 3 else None)
    plain = (
        not wants_slices()
        or load_config is None
        or load_config.hf_quantizer is not None
        or load_config.device_map is not None
    )
    if plain:
        return original(*args, **kwargs)
    model = kwargs.get("model", args[0] if args else None)
    with _load():
        loaded = original(*args, **kwargs)
    model.register_forward_pre_hook(fill_before_use)
    return loaded


def fill_before_use(model, *_):
    """A model that is used without an engine reads its weights whole, once. Removes itself."""
    for key, hook in list(model._forward_pre_hooks.items()):
        if hook is fill_before_use:
            del model._forward_pre_hooks[key]
    filled = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            source = getattr(parameter, "_ullage_source", None)
            if source is None or not parameter.is_meta:
                continue
            if id(parameter) not in filled:
                value = source.whole().to(parameter.dtype)
                filled[id(parameter)] = torch.nn.Parameter(value, parameter.requires_grad)
            module._parameters[name] = filled[id(parameter)]


class LaterSlice:
    """What safe_open's get_slice gives, and where it is."""

    def __init__(self, plain, source):
        self._plain, self.source = plain, source

    def __getitem__(self, index):
        return self._plain[index]

    def __getattr__(self, name):
        return getattr(self._plain, name)


class LaterFile:
    """An open safetensors file whose slices know where they are."""

    def __init__(self, plain, path):
        self._plain = plain
        self._sources = empty.sources_of(path)

    def get_slice(self, name):
        plain = self._plain.get_slice(name)
        source = self._sources.get(name)
        return plain if source is None else LaterSlice(plain, source)

    def __getattr__(self, name):
        return getattr(self._plain, name)

    def __exit__(self, *args):
        return self._plain.__exit__(*args)


def open_file(original, path, *args, **kwargs):
    """Around safetensors.safe_open, in transformers' modeling_utils."""
    plain = original(path, *args, **kwargs)
    return LaterFile(plain, str(path)) if _loading.get() else plain


def materialize(original, thread_pool, tensor, device=None, dtype=None, *args, **kwargs):
    """Around spawn_materialize: a tensor that goes into a parameter unchanged stays where it is."""
    changed = kwargs.get("sharding_op") is not None or kwargs.get("tensor_idx") is not None or args
    if not isinstance(tensor, LaterSlice) or changed:
        return original(thread_pool, tensor, device, dtype, *args, **kwargs)

    def stay():
        value = torch.empty(tensor.source.shape, dtype=dtype or tensor.source.dtype, device="meta")
        value._ullage_source = tensor.source
        return value

    return stay


def set_parameter(original, model, target_name, value, *args, **kwargs):
    """Around set_param_for_module."""
    source = getattr(value, "_ullage_source", None)
    if source is not None:
        path, _, name = target_name.rpartition(".")
        owner = model.get_submodule(path) if path else model
        if name in owner._parameters:
            value = torch.nn.Parameter(value, requires_grad=value.is_floating_point())
            value._ullage_source = source
        else:
            value = source.whole().to(value.dtype)
    return original(model, target_name, value, *args, **kwargs)
