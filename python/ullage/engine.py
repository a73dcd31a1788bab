"""The engine around a model: forward, backward, step, and what belongs to them."""

import contextlib
import json
import logging
import weakref

import torch

from ullage import _C, access, autocast, checkpoint, lines, rebinding
from ullage import optimizer as optimizers
from ullage.empty import reader_for
from ullage.gradients import GradientView
from ullage.huggingface.methods import AccelerateMethods
from ullage.loader import EngineLoader, to_device

log = logging.getLogger("ullage")

# By id of the parameter: which engine has it. Parameters live as long as their model.
_engine_of = weakref.WeakValueDictionary()


def engine_of(parameter):
    """The engine that manages a parameter, or None."""
    engine = _engine_of.get(id(parameter))
    return engine if engine is not None and id(parameter) in engine._names else None


def engines():
    """The engines of this process, each once."""
    return list({id(engine): engine for engine in _engine_of.values()}.values())


class _Ended:
    """In the place of an engine's core after destroy."""

    def __getattr__(self, name):
        raise _C.StateError(
            "this engine has ended (destroy, or a second initialize on its model)\nhint: use the engine "
            "that initialize returned last"
        )


class Engine(AccelerateMethods, torch.nn.Module):
    """Made by `ullage.initialize`. Unknown attributes are those of the model, `module`.

    An engine is used by one thread. All ranks call backward, step and what is called collective
    equally often.
    """

    def __init__(self, model, settings, ranks, optimizer, seed):
        super().__init__()
        self.module = model
        self._settings = settings
        self._ranks = ranks
        self._cuda = torch.cuda.is_available()
        # Several names may be one parameter: the first is the engine's.
        self._parameters_by_name = {}
        self._names = {}
        parameter_list = _C.ParameterList()
        integers = {}  # weights of quantised layers: nobody trains them, and every rank has them whole
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if not parameter.is_floating_point():
                integers[name] = parameter
                parameter_list.add_buffer(name, parameter)
                continue
            parameter_list.add(name, parameter)
            if id(parameter) not in self._names:
                self._names[id(parameter)] = name
                self._parameters_by_name[name] = parameter
        persistent = set(model.state_dict(keep_vars=True))
        for name, buffer in model.named_buffers():
            if name in persistent:
                parameter_list.add_buffer(name, buffer)
            else:
                parameter_list.add_buffer_name(name)
        groups = [] if optimizer is None else optimizers.named_groups(optimizer, self._names)
        self._core = _C.Engine(
            parameter_list,
            settings,
            ranks,
            seed=seed,
            weights=reader_for(self._parameters_by_name),
            groups=groups,
            cuda=self._cuda,
        )
        for parameter in self._parameters_by_name.values():
            _engine_of[id(parameter)] = self
        access.register(self)
        self.device = torch.device("cuda", torch.cuda.current_device()) if self._cuda else torch.device("cpu")
        if self._cuda:
            for tensor in (*model.buffers(), *integers.values()):
                tensor.data = tensor.data.to(self.device)

        if optimizer is None and any(p.requires_grad for p in model.parameters()):
            optimizer = self._make_optimizer()
        self.optimizer = None if optimizer is None else optimizers.adopt(optimizer, self)
        self._published = []
        self._publish_groups()
        self._gradients = GradientView(self)
        self._user_scheduler = None
        self.lr_scheduler = None
        self.training_dataloader = None
        self._boundary = None
        self._last = None
        self.micro_steps = 0
        self.global_samples = 0
        self._gives_model_back = False
        self._awaited_link = None  # of a save in the background
        asks = "steps_per_print" in settings.given
        self._lines_every = settings.steps_per_print if asks else None
        if ranks.rank == 0:
            lines.say_start(settings, self._core.start_lines())
        if integers and ranks.rank == 0:
            lines.say_integers(integers)

    def _make_optimizer(self):
        groups = [
            {
                "params": [self._parameters_by_name[name] for name in group.parameters],
                "lr": group.lr,
                "weight_decay": group.weight_decay,
                "name": group.name,
            }
            for group in self._core.groups()
            if group.parameters
        ]
        return optimizers.make_optimizer(self._settings, groups)

    # ---- a step

    def forward(self, *args, **kwargs):
        """Runs the model with this micro-batch's random numbers; tensors come to the device first."""
        if self._cuda:
            args = to_device(args, self.device)
            kwargs = to_device(kwargs, self.device)
        access.end_leases()
        rebinding.adopt(self)
        with autocast.owned(self.device.type):
            return self._core.forward(lambda: self.module(*args, **kwargs))

    def backward(self, loss, retain_graph=False, scale_wrt_gas=True):
        """Runs the backward pass of a loss of one element; returns it divided by the accumulation
        steps. With scale_wrt_gas=False the gradients are not divided by them, and neither is what
        is returned."""
        access.end_leases()
        rebinding.check(self)
        self._gradients.write_back()  # before another pass adds to the sums
        if scale_wrt_gas:
            return self._core.backward(loss, retain_graph)
        scaled = loss if loss is None else loss * self.gradient_accumulation_steps()
        self._core.backward(scaled, retain_graph)
        return loss.detach() if loss is not None else None

    def scale(self, loss):
        """The loss times the loss scale, for a backward pass of your own: scale(loss).backward()."""
        return self._core.scale(loss)

    def step(self, lr_kwargs=None):
        """Called after every micro-step. At the boundary: the optimizer's step with what hangs on it."""
        is_boundary = self.is_gradient_accumulation_boundary()
        self.micro_steps += 1
        if not is_boundary or self.optimizer is None:
            return
        self.optimizer.step()
        self.global_samples += self.train_batch_size()
        if self._last.applied and self._user_scheduler is not None:
            self._user_scheduler.step(**(lr_kwargs or {}))
        if self._ranks.rank == 0:
            lines.say_step(self)

    def _apply(self):
        access.end_leases()
        rebinding.check(self)
        self._gradients.write_back()
        self._submit_groups()
        self._last = self._core.step()
        self._gradients.forget()
        self.optimizer.overflow = not self._last.applied
        if not self._last.applied and self._ranks.rank == 0:
            log.warning(
                "step skipped: the gradient of '%s' is inf or nan (loss scale %g)",
                self._last.overflowed,
                self._last.loss_scale,
            )
        self._publish_groups()

    def _submit_groups(self):
        """What the user, or a scheduler, wrote to the optimizer's groups holds for this step."""
        for index, group in enumerate(self.optimizer.param_groups):
            now = (float(group["lr"]), float(group["weight_decay"]))
            if now != self._published[index]:
                self._core.set_group(index, *now)
                self._published[index] = now

    def _publish_groups(self):
        """Shows in the optimizer's groups what the next step will use."""
        if self.optimizer is None or (self._published and not self._settings.has_scheduler):
            return  # nothing has changed them
        for index, (_, weight_decay) in enumerate(self._published):
            self._core.set_group(index, None, weight_decay)  # the config's rate holds again
        groups = self._core.groups()
        self._published = [(group.lr, group.weight_decay) for group in groups]
        for own, group in zip(self.optimizer.param_groups, groups):
            own["lr"], own["weight_decay"] = group.lr, group.weight_decay

    def zero_grad(self, set_to_none=True):
        """Drops the gradients since the last step."""
        del set_to_none
        self._gradients.forget()
        self._core.clear_gradients()

    def is_gradient_accumulation_boundary(self):
        """Whether the next `step` applies an update."""
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0

    def set_gradient_accumulation_boundary(self, is_boundary):
        """From now on the caller says when `step` applies an update."""
        self._boundary = bool(is_boundary)

    @contextlib.contextmanager
    def no_sync(self):
        """Accepted for loops that have it; gradients are summed at every micro-step all the same."""
        yield

    # ---- what was and will be

    def was_step_applied(self):
        return self._last is not None and self._last.applied

    def get_global_grad_norm(self):
        """The last step's global norm, unscaled and before clipping; None before the first."""
        return None if self._last is None else self._last.grad_norm

    def get_lr(self):
        """The learning rate of each group that the next step will use."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_mom(self):
        return [group.get("momentum", group.get("betas")) for group in self.optimizer.param_groups]

    def get_batch_info(self):
        """(train batch, micro-batch, accumulation steps)"""
        sizes = self._core.batch_sizes
        return sizes.train_batch, sizes.micro_batch, sizes.accumulation_steps

    def train_batch_size(self):
        return self._core.batch_sizes.train_batch

    def train_micro_batch_size_per_gpu(self):
        return self._core.batch_sizes.micro_batch

    def gradient_accumulation_steps(self):
        return self._core.batch_sizes.accumulation_steps

    def set_train_batch_size(self, train_batch_size):
        """Changes the accumulation steps so that a step takes so many samples."""
        per_micro_step = self._core.batch_sizes.micro_batch * self._ranks.world_size
        if train_batch_size % per_micro_step != 0 or train_batch_size < per_micro_step:
            raise _C.ConfigError(
                f"train_batch_size {train_batch_size} is no multiple of micro-batch * ranks = "
                f"{per_micro_step}\nhint: pass a multiple of it"
            )
        self._core.set_accumulation_steps(train_batch_size // per_micro_step)

    @property
    def config(self):
        """The settings as they hold, nested as in a file; engine.sources says where each comes from."""
        nested = {}
        for setting in self._settings.effective():
            *sections, key = setting.key.split(".")
            section = nested
            for name in sections:
                section = section.setdefault(name, {})
            try:
                section[key] = json.loads(setting.value)
            except ValueError:
                section[key] = setting.value
        return nested

    @property
    def sources(self):
        """{dotted key: "file", "default", "derived" or who else set it}"""
        return {setting.key: setting.source for setting in self._settings.effective()}

    @property
    def global_steps(self):
        """Optimizer steps, skipped ones included."""
        return self._core.applied_steps + self._core.skipped_steps

    @property
    def skipped_steps(self):
        return self._core.skipped_steps

    @property
    def global_rank(self):
        return self._ranks.rank

    @property
    def world_size(self):
        return self._ranks.world_size

    @property
    def loss_scale(self):
        return self._core.loss_scale

    def zero_optimization_stage(self):
        return self._settings.stage

    def get_data_types(self):
        """(dtype of the weights, dtype of the gradient sums)"""
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        return dtypes[self._settings.precision.name], torch.float32

    def parameters_sha256(self):
        """Collective: SHA-256 over name, shape and fp32 values of every distinct parameter."""
        access.end_leases()
        return self._core.parameters_sha256()

    # ---- data

    def deepspeed_io(self, dataset, batch_size=None, collate_fn=None, pin_memory=None, **unknown):
        """A loader of this rank's micro-batches of a dataset."""
        if unknown:
            raise _C.UnsupportedError(
                f"deepspeed_io with {', '.join(unknown)}\nhint: make a DataLoader of your own"
            )
        return EngineLoader(
            dataset,
            batch_size or self.train_micro_batch_size_per_gpu(),
            self._ranks.rank,
            self._ranks.world_size,
            collate_fn,
            self._settings.dataloader_drop_last,
            seed=0,
            pin_memory=self._cuda if pin_memory is None else pin_memory,
        )

    # ---- files

    def save_checkpoint(
        self,
        save_dir,
        tag=None,
        client_state=None,
        save_latest=True,
        exclude_frozen_parameters=False,
        *,
        keep=0,
        background=False,
    ):
        """Collective: checkpoint.save_checkpoint."""
        access.end_leases()
        return checkpoint.save_checkpoint(
            self, save_dir, tag, client_state, save_latest, exclude_frozen_parameters, keep, background
        )

    def finish_saving(self):
        """Collective: returns when a save in the background is on the disk. Raises what went wrong with it."""
        checkpoint.finish_saving(self)

    def load_checkpoint(
        self,
        load_dir,
        tag=None,
        load_module_strict=True,
        load_optimizer_states=True,
        load_lr_scheduler_states=True,
        load_module_only=False,
        custom_load_fn=None,
    ):
        """Collective: checkpoint.load_checkpoint."""
        access.end_leases()
        return checkpoint.load_checkpoint(
            self,
            load_dir,
            tag,
            load_module_strict,
            load_optimizer_states,
            load_lr_scheduler_states,
            load_module_only,
            custom_load_fn,
        )

    def save_16bit_model(
        self, save_dir, save_filename="pytorch_model.bin", exclude_frozen_parameters=False
    ):
        """Collective: checkpoint.save_16bit_model."""
        access.end_leases()
        return checkpoint.save_16bit_model(self, save_dir, save_filename, exclude_frozen_parameters)

    save_fp16_model = save_16bit_model

    def module_state_dict(self, *args, **kwargs):
        return self.module.state_dict(*args, **kwargs)

    def load_module_state_dict(self, state_dict, strict=True):
        return self.module.load_state_dict(state_dict, strict=strict)

    # ---- the end

    def empty_partition_cache(self):
        """Does nothing: gathered weights live in a ring of fixed size."""

    def offload_states(self, *_, **__):
        raise _C.UnsupportedError(
            "offload_states: state does not move during a run\nhint: zero_optimization.offload_optimizer "
            "and offload_param keep it on the host from the start; or save_checkpoint, destroy() and later "
            "initialize and load_checkpoint"
        )

    reload_states = offload_states

    def destroy(self):
        """Gives the parameters back and ends the engine. Sliced ones lose their bytes."""
        access.end_leases()
        if not self.has_ended:
            checkpoint.finish_saving(self)
        if self._gives_model_back and not self.has_ended:
            self._give_model_back()
        for key in self._names:
            _engine_of.pop(key, None)
        self._core = _Ended()

    @property
    def has_ended(self):
        return self._core is None or isinstance(self._core, _Ended)

    def _name_of(self, parameter):
        return self._names[id(parameter)]

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if "module" not in modules:
                raise
            return getattr(modules["module"], name)
