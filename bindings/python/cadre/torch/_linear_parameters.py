"""The parameters of GroupedLinear: one for each expert or one for all of them, how they start, state dicts of either form."""

from __future__ import annotations

import math

import torch

from .._errors import wrong_type, wrong_value
from ._dtypes import FLOATS

_OP = "GroupedLinear"
# FLOATS are the element types of a parameter, of `out` and of every gradient.
#: What weights may be that are FP8 from the start.
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_FLOAT_NAMES = "torch.float64, torch.float32, torch.bfloat16 or torch.float16"


def default_init(weight: torch.Tensor) -> None:
    torch.nn.init.normal_(weight, mean=0.0, std=0.023)


class ExpertParameters(torch.nn.Module):
    """weight0, weight1, ... [out, in] or one `weight` [g, out, in]; bias0, ... [out] or one `bias` [g, out]; or no bias.

    Whoever derives from it sets the sizes, the forms and the way to initialise, then calls _make_parameters.
    """

    def _make_parameters(self, device, dtype):
        def parameter(*shape):
            return torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        groups, n, k = self.num_gemms, self.out_features, self.in_features
        if dtype in FP8:
            self._make_fp8_parameters(device, dtype)
            dtype = torch.bfloat16  # of the biases
        elif self.single_grouped_weight:
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

    def _make_fp8_parameters(self, device, dtype):
        """Weights that a checkpoint has in FP8, and their scales under the names of Hugging Face's."""
        single, groups = self.single_grouped_weight, self.num_gemms
        for name in ["weight"] if single else [f"weight{i}" for i in range(groups)]:
            made = fp8_parameters(
                dtype,
                self.recipe.mode,
                self.out_features,
                self.in_features,
                groups=groups if single else None,
                device=device,
            )
            for suffix, each in zip(("", "_scale_inv"), made, strict=True):
                self.register_parameter(name + suffix, each)

    def scales_of_weights(self):
        """The scales of FP8 weights, in the form of weights()."""
        return [getattr(self, f"{name}_scale_inv") for name in self.weight_names()]

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

    def reset_parameters(self, defer_init: bool = False) -> None:
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
        fp8 = self.params_dtype in FP8  # which a checkpoint fills
        for weight in [] if fp8 else self.weight if self.single_grouped_weight else self.weights():
            self.init_method(weight)
        for bias in self.biases():
            bias.zero_()

    def weights(self) -> list[torch.nn.Parameter]:
        """The weight parameters: one for each expert, or the one of all experts alone."""
        return [parameter for _, parameter in self._named("weight")]

    def weight_names(self) -> list[str]:
        return [name for name, _ in self._named("weight")]

    def biases(self) -> list[torch.nn.Parameter]:
        """The bias parameters, in the same way; none without bias."""
        return [parameter for _, parameter in self._named("bias")] if self.use_bias else []

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        for kind in ("weight", "bias") if self.use_bias else ("weight",):
            error_msgs += self._convert(state_dict, prefix, kind)
        # Transformer Engine saves the state of its quantisers here: an empty tensor where there are none.
        extra = state_dict.get(f"{prefix}_extra_state")
        if isinstance(extra, torch.Tensor) and extra.numel() == 0:
            del state_dict[f"{prefix}_extra_state"]
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _convert(self, state_dict, prefix, kind):
        """Brings entries of the other form into this module's, and returns what is wrong with those that can't be.

        What is incomplete or doubled is left to torch to report.
        """
        parameters = {prefix + name: parameter for name, parameter in self._named(kind)}
        single, listed = f"{prefix}{kind}", [f"{prefix}{kind}{i}" for i in range(self.num_gemms)]
        to_single = single in parameters
        given = [key for key in (listed if to_single else [single]) if key in state_dict]
        if any(key in state_dict for key in parameters) or len(given) != (
            len(listed) if to_single else 1
        ):
            return []
        whole = [len(listed), *next(iter(parameters.values())).shape[to_single:]]
        expected = whole[1:] if to_single else whole
        errors = []
        for key in given:
            value = state_dict[key]
            if not isinstance(value, torch.Tensor):
                errors.append(str(wrong_type(_OP, key, value, "a torch.Tensor")))
            elif list(value.shape) != expected:
                errors.append(str(wrong_value(_OP, f"{key}.shape", list(value.shape), expected)))
        values = [state_dict.pop(key) for key in given]
        if errors:
            # So that torch doesn't report the same parameters as missing.
            state_dict.update((key, each.detach()) for key, each in parameters.items())
        elif to_single:
            state_dict[single] = torch.stack(values)
        else:
            state_dict.update(zip(listed, values[0].unbind(0), strict=True))
        return errors

    def _named(self, kind):
        """(name, parameter) of the weights or of the biases."""
        single = self.single_grouped_weight if kind == "weight" else self.single_grouped_bias
        names = [kind] if single else [f"{kind}{i}" for i in range(self.num_gemms)]
        return [(name, getattr(self, name)) for name in names]


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


def fp8_parameters(dtype, mode, n, k, *, groups=None, device=None):
    """(data, scales) of one [n, k] matrix or of a stack of them, all zero, to be filled from a checkpoint."""
    of_block = -(-n // 128), -(-k // 128)
    shapes = {"tensor": (1,), "row": (n,), "block_128": of_block, "mx": (n, -(-k // 32))}
    scale_dtype = torch.float8_e8m0fnu if mode == "mx" else torch.float32
    made = []
    for shape, each in (((n, k), dtype), (shapes[mode], scale_dtype)):
        whole = shape if groups is None else (groups, *shape)
        size = math.prod(whole) * each.itemsize
        zeros = torch.zeros(size, dtype=torch.uint8, device=device).view(each).view(whole)
        made.append(torch.nn.Parameter(zeros, requires_grad=False))
    return made


def parameter_dtype(params_dtype, dtype, recipe=None):
    """The one of the two that is given; torch's default where neither is. With a recipe it may be FP8."""
    for name, value in (("params_dtype", params_dtype), ("dtype", dtype)):
        if value is not None and not isinstance(value, torch.dtype):
            raise wrong_type(_OP, name, value, "a torch.dtype")
    if None not in (params_dtype, dtype) and params_dtype != dtype:
        raise wrong_value(
            _OP, "dtype", dtype, f"params_dtype = {params_dtype}, or only one of the two"
        )
    chosen = params_dtype or dtype or torch.get_default_dtype()
    if chosen in FP8 and recipe is None:
        expected = "'block_128', 'row', 'tensor' or 'mx', because the weights are FP8"
        raise wrong_value(_OP, "recipe", None, expected)
    if chosen not in (*FLOATS, *FP8):
        raise wrong_value(_OP, "dtype" if dtype else "params_dtype", chosen, _FLOAT_NAMES)
    return chosen


def check_float(name, tensor):
    """Refuses a buffer of another element type."""
    if tensor.dtype not in FLOATS:
        raise TypeError(f"{_OP}: {name}.dtype = {tensor.dtype}, expected {_FLOAT_NAMES}")
