"""Where GroupedMLP's gradients of w13 and w2 go: .grad, main_grad, or either of them later."""

import torch

from . import _main_grad

_OP = "GroupedMLP"


class WeightGradients:
    """The gradients of w13 and w2 of one pass. Who derives from it computes them: into(targets, beta) adds beta times what
    the targets hold; read_later() lists what a delayed gradient reads."""

    def __init__(self, module, is_first_microbatch):
        self.main_grads = None
        if module.fuse_wgrad_accumulation and all(weight.requires_grad for weight in module.weights()):
            # Fetched once, in backward: a sharded parameter hands its buffer out then.
            self.main_grads = _main_grad.fetch(module)
            self.overwritten = [
                bool(is_first_microbatch or getattr(weight, "overwrite_main_grad", False))
                for weight in module.weights()
            ]

    def keep_for_later(self):
        self.versions = self._versions()

    def _versions(self):
        return [tensor._version for tensor in self.read_later()]

    def targets_or_room(self, module):
        """Where the gradients will go. A pass that leaves them looks at the shapes alone."""
        return self.main_grads or [torch.empty_like(weight) for weight in module.weights()]

    def beta(self):
        """0 where main_grad is replaced, else 1. Where only one of them is, that one starts from zero."""
        if len(set(self.overwritten)) == 1:
            return 0.0 if self.overwritten[0] else 1.0
        for main_grad, replaced in zip(self.main_grads, self.overwritten, strict=True):
            if replaced:
                main_grad.zero_()
        return 1.0

    def marked(self, module):
        """What autograd is given for weights whose main_grad has taken the gradient."""
        for weight in module.weights():
            if hasattr(weight, "grad_added_to_main_grad"):
                weight.grad_added_to_main_grad = True
        return [_main_grad.placeholder(weight) for weight in module.weights()]

    @torch.no_grad()
    def run(self, module):
        """The delayed way, outside autograd."""
        if self.versions != self._versions():
            raise RuntimeError(
                f"{_OP}: the input, its routing or the gradient of the result was changed in place between backward and "
                "backward_dw(), which needs them as they were"
            )
        if self.main_grads is not None:
            self.into(self.main_grads, self.beta())
            self.marked(module)
            return
        weights = module.weights()
        fresh = all(weight.grad is None for weight in weights)
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.empty_like(weight) if fresh else torch.zeros_like(weight)
        self.into([weight.grad for weight in weights], 0.0 if fresh else 1.0)
