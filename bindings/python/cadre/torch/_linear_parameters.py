"""The parameters of GroupedLinear: one for each expert or one for all of them, how they start, state dicts of either form."""

import torch

from .._errors import wrong_type, wrong_value

_OP = "GroupedLinear"
#: The element types of a parameter, of `out` and of every gradient.
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_FLOAT_NAMES = "torch.float64, torch.float32, torch.bfloat16 or torch.float16"


def default_init(weight):
    torch.nn.init.normal_(weight, mean=0.0, std=0.023)


class ExpertParameters(torch.nn.Module):
    """weight0, weight1, ... [out, in] or one `weight` [g, out, in]; bias0, ... [out] or one `bias` [g, out]; or no bias.

    Whoever derives from it sets the sizes, the forms and the way to initialise, then calls _make_parameters.
    """

    def _make_parameters(self, device, dtype):
        def parameter(*shape):
            return torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        groups, n, k = self.num_gemms, self.out_features, self.in_features
        if self.single_grouped_weight:
            self.weight = parameter(groups, n, k)
        else:
            for i in range(groups):
                self.register_parameter(f"weight{i}", parameter(n, k))
        if self.use_bias and self.single_grouped_bias:
            self.bias = parameter(groups, n)
        elif self.use_bias:
            for i in range(groups):
                self.register_parameter(f"bias{i}", parameter(n))
        self._mark_parameters()
        self.reset_parameters(defer_init=self.weights()[0].is_meta)

    def _mark_parameters(self):
        """The attributes by which Megatron finds shards and leaves out hooks that would fire before the gradient is there."""
        row = self.parallel_mode == "row"
        for weight in self.weights():
            _mark_shard(weight, 1 if row else 0)
            if self.delay_wgrad_compute:
                weight.skip_backward_post_hook = True
        for bias in self.biases():
            if row:
                bias.sequence_parallel = self.sequence_parallel
            elif self.parallel_mode == "column":
                _mark_shard(bias, 0)

    def reset_parameters(self, defer_init=False):
        """Each expert's weight by init_method, inside the RNG tracker's fork if there is one; biases become zero."""
        if defer_init:
            return
        if self.get_rng_state_tracker is None:
            self._fill_parameters()
            return
        name = [self.rng_tracker_name] if self.rng_tracker_name else []
        with self.get_rng_state_tracker().fork(*name):
            self._fill_parameters()

    @torch.no_grad()
    def _fill_parameters(self):
        for weight in self.weight if self.single_grouped_weight else self.weights():
            self.init_method(weight)
        for bias in self.biases():
            bias.zero_()

    def weights(self):
        """The weight parameters: one for each expert, or the one of all experts alone."""
        return self._parameters_of("weight", self.single_grouped_weight)

    def biases(self):
        """The bias parameters, in the same way; none without bias."""
        return self._parameters_of("bias", self.single_grouped_bias) if self.use_bias else []

    def _parameters_of(self, kind, single):
        if single:
            return [getattr(self, kind)]
        return [getattr(self, f"{kind}{i}") for i in range(self.num_gemms)]

    def _load_from_state_dict(self, state_dict, prefix, *args):
        self._convert(state_dict, f"{prefix}weight", self.single_grouped_weight)
        if self.use_bias:
            self._convert(state_dict, f"{prefix}bias", self.single_grouped_bias)
        # Transformer Engine saves the state of its quantisers here: an empty tensor where there are none.
        extra = state_dict.get(f"{prefix}_extra_state")
        if isinstance(extra, torch.Tensor) and extra.numel() == 0:
            del state_dict[f"{prefix}_extra_state"]
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _convert(self, state_dict, key, single):
        """Brings entries of the other form into this module's; what is incomplete or doubled is left to torch to report."""
        listed = [f"{key}{i}" for i in range(self.num_gemms)]
        found = sum(each in state_dict for each in listed)
        if single and found == len(listed) and key not in state_dict:
            state_dict[key] = torch.stack([state_dict.pop(each) for each in listed])
        elif not single and found == 0 and len(state_dict.get(key, ())) == len(listed):
            state_dict.update(zip(listed, state_dict.pop(key).unbind(0), strict=True))


def one_or_list(tensors, single):
    """The parameters as the ops take them: the one of all experts, or the list."""
    return tensors[0] if single else tensors


def _mark_shard(parameter, dim):
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = (
        True,
        dim,
        1,
    )


def positive_int(name, value):
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(_OP, name, value, "an int")
    if value < 1:
        raise wrong_value(_OP, name, value, "1 or more")
    return value


def shard_size(name, features, tp_size):
    """What one of tp_size ranks holds of `features`."""
    if features % tp_size:
        raise wrong_value(_OP, name, features, f"a multiple of tp_size = {tp_size}")
    return features // tp_size


def parameter_dtype(params_dtype, dtype):
    """The one of the two that is given; torch's default where neither is."""
    for name, value in (("params_dtype", params_dtype), ("dtype", dtype)):
        if value is not None and not isinstance(value, torch.dtype):
            raise wrong_type(_OP, name, value, "a torch.dtype")
    if None not in (params_dtype, dtype) and params_dtype != dtype:
        raise wrong_value(
            _OP, "dtype", dtype, f"params_dtype = {params_dtype}, or only one of the two"
        )
    chosen = params_dtype or dtype or torch.get_default_dtype()
    if chosen not in FLOATS:
        raise wrong_value(_OP, "dtype" if dtype else "params_dtype", chosen, _FLOAT_NAMES)
    return chosen


def check_float(name, tensor):
    """Refuses a buffer of another element type."""
    if tensor.dtype not in FLOATS:
        raise TypeError(f"{_OP}: {name}.dtype = {tensor.dtype}, expected {_FLOAT_NAMES}")
