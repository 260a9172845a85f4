"""Gradients of select_experts, permute, combine and combine_grad.

permute and combine are made of each other; with out[t] = sum of weights[t, j] * y[slot_row[t, j]],

    dy[slot_row[t, j]] = weights[t, j] * dout[t]                combine_grad
    dweights[t, j]     = dot(dout[t], y[slot_row[t, j]])        combine_grad
    dx of permute      = the sum of a token's rows              combine without weights

so all can be differentiated again, to any order. The gradient of select_experts is an operator of its own, which is made of
torch's ops where it is differentiated itself.
"""

import torch

from .. import _structs
from .._errors import wrong_value
from . import _dtypes
from ._operators import (
    combine,
    combine_grad,
    permute,
    route,
    select_experts,
    select_experts_grad,
)
from ._transforms import Derivatives, map_in_turn


def _scores(a, logits):
    """The scores of all experts, in the type they are computed in, and a function from their gradient to that of logits.

    Each of the two functions is its own transpose, so the same one takes tangents of logits to those of the scores.
    """
    wide = logits.to(_dtypes.accumulator(logits.dtype))
    if a.score == _structs.SCORE_SOFTMAX:
        scores = torch.softmax(wide, -1)
        return scores, lambda d: scores * (d - (scores * d).sum(-1, keepdim=True))
    scores = torch.sigmoid(wide)
    return scores, lambda d: d * scores * (1 - scores)


def _select_backward(a, needs, grads, expert_ids):
    dweights, _ = grads
    if not torch.is_grad_enabled():
        dlogits = select_experts_grad.call(
            logits=a.logits,
            expert_ids=expert_ids,
            dweights=dweights,
            score=a.score,
            normalize=a.normalize,
            scale=a.scale,
        )
        return {"logits": dlogits}
    scores, through_scores = _scores(a, a.logits)
    ids, dchosen = expert_ids.long(), dweights.to(scores.dtype)
    if a.normalize:
        chosen = scores.gather(-1, ids)
        total = chosen.sum(-1, keepdim=True)
        dchosen = (dchosen - (dchosen * chosen).sum(-1, keepdim=True) / total) / total
    dscores = torch.zeros_like(scores).scatter_add(-1, ids, a.scale * dchosen)
    return {"logits": through_scores(dscores).to(a.logits.dtype)}


def _select_tangent(operator, a, tangents):
    weights, ids = operator.call(**a._asdict())
    scores, through_scores = _scores(a, a.logits)
    chosen = scores.gather(-1, ids.long())
    tangent = through_scores(tangents.logits.to(scores.dtype)).gather(-1, ids.long())
    if a.normalize:
        total = chosen.sum(-1, keepdim=True)
        tangent = (tangent - chosen * tangent.sum(-1, keepdim=True) / total) / total
    return (a.scale * tangent).to(weights.dtype), None


def _permute_backward(a, needs, dout):
    if a.slot_row is None:
        raise wrong_value("permute", "slot_row", None, "that of route, because x wants a gradient")
    return {
        "x": combine.call(
            y=dout, slot_row=a.slot_row, source_row=a.source_row, out_dtype=a.x.dtype
        )
    }


def _permute_tangent(operator, a, tangents):
    return operator.call(x=tangents.x, source_row=a.source_row, slot_row=a.slot_row)


_WHERE = ("slot_row", "source_row")


def _combine_kept(needs):
    kept = [*_WHERE]
    if needs.weights:
        kept.append("y")
    if needs.y:
        kept.append("weights")
    return kept


def _combine_backward(a, needs, dout):
    gradients = {}
    if needs.y or needs.weights:
        results = combine_grad.call(
            dout=dout,
            slot_row=a.slot_row,
            source_row=a.source_row,
            weights=a.weights if needs.y else None,
            y=a.y if needs.weights else None,
            dy_dtype=a.y.dtype if needs.y else None,
            dweights_dtype=a.weights.dtype if needs.weights else None,
        )
        names = [name for name in ("y", "weights") if getattr(needs, name)]
        gradients = dict(zip(names, results, strict=True))
    for name in ("shared", "residual"):
        if getattr(needs, name):
            gradients[name] = dout.to(getattr(a, name).dtype)
    return gradients


def _combine_tangent(operator, a, tangents):
    dtype = a.out_dtype or a.y.dtype
    wide = _dtypes.accumulator(dtype)
    where = {"slot_row": a.slot_row, "source_row": a.source_row, "out_dtype": wide}
    terms = [each.to(wide) for each in (tangents.shared, tangents.residual) if each is not None]
    if tangents.y is not None:
        terms.append(operator.call(y=tangents.y, weights=a.weights, **where))
    if tangents.weights is not None:
        terms.append(operator.call(y=a.y, weights=tangents.weights, **where))
    return sum(terms[1:], start=terms[0]).to(dtype)


def _combine_grad_kept(needs):
    return [*_WHERE, "dout", "weights", "y"]


def _results(a, values):
    """combine_grad's results, or what belongs to them, by name: those that were asked for."""
    names = [name for name in ("dy", "dweights") if getattr(a, f"{name}_dtype") is not None]
    return dict(zip(names, values, strict=True))


def _combine_grad_backward(a, needs, grads):
    grads = _results(a, grads)
    where = {"slot_row": a.slot_row, "source_row": a.source_row}
    gradients, ddout = {}, []
    if "dy" in grads:
        if needs.dout:
            ddout.append(combine.call(y=grads["dy"], weights=a.weights, **where))
        if needs.weights:
            (gradients["weights"],) = combine_grad.call(
                dout=a.dout, y=grads["dy"], dweights_dtype=a.weights.dtype, **where
            )
    if "dweights" in grads:
        if needs.dout:
            ddout.append(combine.call(y=a.y, weights=grads["dweights"], **where))
        if needs.y:
            (gradients["y"],) = combine_grad.call(
                dout=a.dout, weights=grads["dweights"], dy_dtype=a.y.dtype, **where
            )
    if ddout:
        gradients["dout"] = sum(ddout[1:], start=ddout[0]).to(a.dout.dtype)
    return gradients


def _combine_grad_tangent(operator, a, tangents):
    """dy is linear in dout and in weights, dweights in dout and in y."""
    given = a._asdict()
    sums = {}
    for replaced, result in (
        ("dout", "dy"),
        ("weights", "dy"),
        ("dout", "dweights"),
        ("y", "dweights"),
    ):
        tangent, dtype = getattr(tangents, replaced), getattr(a, f"{result}_dtype")
        if dtype is None:
            continue
        if tangent is not None:
            alone = {"dy_dtype": None, "dweights_dtype": None, f"{result}_dtype": dtype}
            (term,) = operator.call(**{**given, replaced: tangent, **alone})
            sums[result] = sums[result] + term if result in sums else term
    names = [name for name in ("dy", "dweights") if getattr(a, f"{name}_dtype") is not None]
    return [sums.get(name) for name in names]


select_experts.differentiable(
    Derivatives(lambda needs: ["logits"], _select_backward, _select_tangent, results=(1,))
)
permute.differentiable(Derivatives(lambda needs: _WHERE, _permute_backward, _permute_tangent))
combine.differentiable(Derivatives(_combine_kept, _combine_backward, _combine_tangent))
combine_grad.differentiable(
    Derivatives(_combine_grad_kept, _combine_grad_backward, _combine_grad_tangent)
)
for _operator in (route, select_experts_grad):
    map_in_turn(_operator)
