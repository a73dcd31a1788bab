"""Methods of an engine that accelerate and Trainer call beside those of a training loop."""

from ullage import _C, checkpoint


class AccelerateMethods:
    """A base of Engine."""

    def zero_gather_16bit_weights_on_model_save(self):
        """Always: whole weights are read in pieces, at no cost on the device."""
        return True

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        """Collective: checkpoint.whole_state."""
        return checkpoint.whole_state(self, exclude_frozen_parameters)

    def compile(self, backend="inductor", compile_kwargs=None, **unknown):
        """Compiles the model's forward in place, as torch.nn.Module.compile does."""
        if unknown:
            raise _C.UnsupportedError(f"compile with {', '.join(unknown)}\nhint: leave it out")
        self.module.compile(backend=backend, **(compile_kwargs or {}))

    def _leaves_model_whole(self, frozen):
        """Makes destroy give the model back whole, as one that trains or evaluates again needs it.

        frozen: parameters that get requires_grad back then.
        """
        self._frozen_until_destroyed = list(frozen)
        self._gives_model_back = True

    def _give_model_back(self):
        """Collective: every parameter gets its whole value back, where it is."""
        values = {
            name: self._core.read_whole(name, "value").to(parameter.dtype)
            for name, parameter in self._parameters_by_name.items()
        }
        self._core = None
        for name, parameter in self._parameters_by_name.items():
            parameter.data = values.pop(name).to(parameter.device)
        for parameter in self._frozen_until_destroyed:
            parameter.requires_grad_(True)
