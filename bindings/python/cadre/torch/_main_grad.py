"""Where a weight's gradient is added instead of .grad: its main_grad, as Megatron's optimizers and FSDP have it."""

import torch

from .._errors import wrong_value
from . import _memory
from ._linear_parameters import check_float

_OP = "GroupedLinear"


def check(module):
    """Raises in forward what fetch() would raise in backward, as far as can be known before a sharded parameter, which
    makes its buffer only then, is asked for it."""
    if any(_is_made_on_demand(weight) for weight in module.weights()):
        for i, weight in enumerate(module.weights()):
            if not callable(getattr(weight, "get_main_grad", None)):
                name = _name(module, i).replace("main_grad", "get_main_grad")
                raise wrong_value(_OP, name, "missing", "a function that returns main_grad")
        return
    _views(module, [getattr(weight, "main_grad", None) for weight in module.weights()])


def fetch(module):
    """Each weight's main_grad as a view of the weight's shape. Called in backward, once for each pass."""
    main_grads = []
    for weight in module.weights():
        if _is_made_on_demand(weight):
            weight.main_grad = weight.get_main_grad()
        main_grads.append(getattr(weight, "main_grad", None))
    return _views(module, main_grads)


def _is_made_on_demand(weight):
    """FSDP's parameters hold the buffer only between get_main_grad() and the reduction."""
    if hasattr(weight, "__fsdp_param__"):
        return True
    return getattr(weight, "main_grad", None) is None and callable(
        getattr(weight, "get_main_grad", None)
    )


def _name(module, i):
    return f"{module.weight_names()[i]}.main_grad"


def _views(module, main_grads):
    views = []
    for i, (weight, main_grad) in enumerate(zip(module.weights(), main_grads, strict=True)):
        name, shape = _name(module, i), list(weight.shape)
        if not isinstance(main_grad, torch.Tensor):
            received = "missing" if main_grad is None else type(main_grad).__name__
            expected = f"a tensor that {shape} is a view of, because fuse_wgrad_accumulation is set"
            raise wrong_value(_OP, name, received, expected)
        try:
            view = main_grad.detach().view(weight.shape)
        except RuntimeError:
            received = (
                f"a tensor of shape {list(main_grad.shape)} and strides {list(main_grad.stride())}"
            )
            raise wrong_value(_OP, name, received, f"one that {shape} is a view of") from None
        check_float(name, view)
        if view.dtype != main_grads[0].dtype:
            expected = f"{_name(module, 0)}.dtype = {main_grads[0].dtype}"
            raise TypeError(f"{_OP}: {name}.dtype = {view.dtype}, expected {expected}")
        if view.device != weight.device:
            raise wrong_value(_OP, f"{name}.device", view.device, weight.device)
        refuse_overlap(name, view)
        views.append(view)
    shared = _memory.first_shared(views)
    if shared:
        first, second = (_name(module, i) for i in shared)
        received = f"a tensor that shares memory with {first}"
        raise wrong_value(_OP, second, received, "memory of its own")
    return views


def refuse_overlap(name, tensor):
    """A buffer in which two elements have one address can't be written."""
    if _memory.overlaps_itself(tensor):
        expected = "every element at its own address"
        raise wrong_value(_OP, f"{name}.strides", list(tensor.stride()), expected)


def betas(module, overwritten, device):
    """One beta for each expert, kept on the device: weights may differ in whether their main_grad is overwritten."""
    key = overwritten, device
    if key not in module._betas:
        values = [0.0 if each else 1.0 for each in overwritten]
        module._betas[key] = torch.tensor(values, dtype=torch.float32, device=device)
    return module._betas[key]


_placeholders = {}


def placeholder(weight):
    """What autograd gets where main_grad has the gradient: Megatron's hooks wait for a .grad. Shared, and all zeros."""
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    key = tuple(weight.shape), weight.dtype, weight.device
    if key not in _placeholders:
        _placeholders[key] = torch.zeros_like(weight, requires_grad=False)
    return _placeholders[key].detach()
