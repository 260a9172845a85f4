"""GroupedLinear: a linear layer for each expert, with Transformer Engine's argument names. Its passes with buffers of the
caller's are in _linear_pass.py."""

import collections

import torch

from .._errors import wrong_type, wrong_value
from . import _arguments, _linear_pass
from ._functional import gmm

_OP = "GroupedLinear"


def _default_init(weight):
    torch.nn.init.normal_(weight, mean=0.0, std=0.023)


class GroupedLinear(torch.nn.Module):
    """y[r] = x[r] @ weight_g^T + scales[r] * bias_g, g the expert of row r.

    num_gemms experts of in_features x out_features. Parameters are weight0, weight1, ... ([out, in] each) and bias0, ...;
    or, with stacked=True, one weight [num_gemms, out, in] and one bias [num_gemms, out].

    bias, return_bias, params_dtype, device, init_method, get_rng_state_tracker, rng_tracker_name: as in Transformer Engine.
    delay_wgrad_compute: backward leaves the weights' gradients to backward_dw(). fuse_wgrad_accumulation: they are added
    to each weight's main_grad (or replace it, where the weight's overwrite_main_grad is true). save_original_input changes
    nothing: it is always the input itself that is saved. Tensor parallelism and its overlaps are not done here: asking for
    them is an error.
    """

    def __init__(
        self,
        num_gemms,
        in_features,
        out_features,
        sequence_parallel=False,
        fuse_wgrad_accumulation=False,
        tp_group=None,
        tp_size=1,
        get_rng_state_tracker=None,
        rng_tracker_name=None,
        init_method=None,
        bias=True,
        return_bias=False,
        params_dtype=None,
        parallel_mode=None,
        device=None,
        ub_overlap_rs=False,
        ub_overlap_ag=False,
        ub_name=None,
        delay_wgrad_compute=False,
        save_original_input=False,
        *,
        stacked=False,
    ):
        super().__init__()
        _refuse_parallelism(
            sequence_parallel=(sequence_parallel, False),
            tp_size=(tp_size, 1),
            parallel_mode=(parallel_mode, None),
            ub_overlap_rs=(ub_overlap_rs, False),
            ub_overlap_ag=(ub_overlap_ag, False),
        )
        for name, value in (
            ("num_gemms", num_gemms),
            ("in_features", in_features),
            ("out_features", out_features),
        ):
            if not isinstance(value, int) or isinstance(value, bool):
                raise wrong_type(_OP, name, value, "an int")
            if value < 1:
                raise wrong_value(_OP, name, value, "1 or more")
        self.num_gemms, self.in_features, self.out_features = num_gemms, in_features, out_features
        self.use_bias, self.return_bias, self.stacked = bool(bias), bool(return_bias), bool(stacked)
        self.fuse_wgrad_accumulation = bool(fuse_wgrad_accumulation)
        self.delay_wgrad_compute = bool(delay_wgrad_compute)
        self._pending = collections.deque()
        self._betas = {}
        self._hooks = []
        self._make_parameters(device, params_dtype)
        self.reset_parameters(init_method or _default_init, get_rng_state_tracker, rng_tracker_name)

    def _make_parameters(self, device, dtype):
        def parameter(*shape):
            return torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        n, k = self.out_features, self.in_features
        if self.stacked:
            self.weight = parameter(self.num_gemms, n, k)
            if self.use_bias:
                self.bias = parameter(self.num_gemms, n)
            return
        for i in range(self.num_gemms):
            self.register_parameter(f"weight{i}", parameter(n, k))
        for i in range(self.num_gemms if self.use_bias else 0):
            self.register_parameter(f"bias{i}", parameter(n))

    def reset_parameters(
        self, init_method=_default_init, get_rng_state_tracker=None, rng_tracker_name=None
    ):
        """Each expert's weight by init_method, inside the tracker's fork where one is given; biases become zero."""

        def fill():
            with torch.no_grad():
                for weight in self.weight if self.stacked else self.weights():
                    init_method(weight)
                for bias in self.biases():
                    bias.zero_()

        if get_rng_state_tracker is None:
            fill()
            return
        with get_rng_state_tracker().fork(*([rng_tracker_name] if rng_tracker_name else [])):
            fill()

    def weights(self):
        """The weight parameters: one for each expert, or the stacked one alone."""
        return (
            [self.weight]
            if self.stacked
            else [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
        )

    def biases(self):
        """The bias parameters, in the form of the weights; none without bias."""
        if not self.use_bias:
            return []
        return (
            [self.bias]
            if self.stacked
            else [getattr(self, f"bias{i}") for i in range(self.num_gemms)]
        )

    def forward(
        self, inp, m_splits, scales=None, is_first_microbatch=None, *, out=None, grad_input=None
    ):
        """inp [..., in_features]; m_splits: rows of each expert, a list or a tensor on either device; scales [rows].

        `out` takes the result and grad_input the gradient of inp, both [rows, features]. is_first_microbatch is for
        quantised weights, of which there are none here. Returns y, or (y, biases) with return_bias.
        """
        if not isinstance(inp, torch.Tensor):
            raise wrong_type(_OP, "inp", inp, "a torch.Tensor")
        if inp.dim() < 2 or inp.shape[-1] != self.in_features:
            raise wrong_value(
                _OP, "inp.shape", tuple(inp.shape), f"[..., in_features = {self.in_features}]"
            )
        splits = _arguments.sizes(_OP, "m_splits", m_splits)
        if splits.dim() != 1 or splits.shape[0] != self.num_gemms:
            raise wrong_value(
                _OP,
                "m_splits.shape",
                tuple(splits.shape),
                f"({self.num_gemms},): one for each expert",
            )
        applied = self.biases() if self.use_bias and not self.return_bias else []
        if scales is not None and not applied:
            raise wrong_value(
                _OP, "scales", "given", "None: they scale a bias, and none is added here"
            )
        if grad_input is not None and inp.is_leaf and inp.requires_grad:
            expected = "None, because inp is a leaf: its .grad would be the buffer itself"
            raise wrong_value(_OP, "grad_input", "given", expected)
        x = inp.reshape(-1, self.in_features)
        own_pass = (
            self.delay_wgrad_compute
            or self.fuse_wgrad_accumulation
            or out is not None
            or grad_input is not None
        )
        if own_pass:
            y = _linear_pass.run(self, x, splits, scales, applied, out, grad_input)
        else:
            weights, bias = self.weights(), applied or None
            if self.stacked:
                weights, bias = weights[0], bias[0] if bias else None
            y = gmm(x, weights, splits, transpose_rhs=True, bias=bias, bias_scale=scales)
        y = y.view(*inp.shape[:-1], self.out_features)
        if not self.return_bias:
            return y
        return y, (self.biases() if self.use_bias else [None] * self.num_gemms)

    def backward_dw(self):
        """Computes the oldest weight gradient that backward left, adding to what .grad (or main_grad) holds.

        Does nothing when there is none. What was kept for it is let go.
        """
        if not self._pending:
            return
        self._pending.popleft().run(self)
        for hook in self._hooks:
            hook()

    @property
    def pending_wgrads(self):
        """Weight gradients that wait for backward_dw()."""
        return len(self._pending)

    def register_wgrad_accumulation_and_reduce_hooks(self, hook):
        """Has `hook` called after every backward_dw() that computed something."""
        self._hooks.append(hook)

    def extra_repr(self):
        form = ", stacked=True" if self.stacked else ""
        return f"{self.num_gemms}, in_features={self.in_features}, out_features={self.out_features}, bias={self.use_bias}{form}"


def _refuse_parallelism(**arguments):
    for name, (value, only) in arguments.items():
        if value != only:
            raise wrong_value(_OP, name, repr(value), f"{only!r}: shard the experts instead")
