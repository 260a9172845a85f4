"""A small language model with experts, trained in f32: cadre's layer follows the eager one step by step, no further from the
same training in f64 than another f32 implementation may be."""

import cadre.torch
import torch
import torch.nn.functional as F

VOCABULARY, WIDTH, INNER, EXPERTS, TOP_K, LAYERS = 29, 16, 12, 6, 2, 2
SEQUENCES, LENGTH, STEPS = 6, 12, 40
#: How much further from f64 one f32 implementation may be than another: both round as often, over the same terms, but in
#: another order and not to the same side.
SLACK = 4


def parameters(generator):
    def normal(*shape, fan_in):
        return torch.randn(shape, generator=generator, dtype=torch.float64) * fan_in**-0.5

    made = {"embedding": normal(VOCABULARY, WIDTH, fan_in=1), "head": normal(WIDTH, VOCABULARY, fan_in=WIDTH)}
    for i in range(LAYERS):
        made[f"{i}.qkv"] = normal(WIDTH, 3 * WIDTH, fan_in=WIDTH)
        made[f"{i}.router"] = normal(WIDTH, EXPERTS, fan_in=WIDTH)
        made[f"{i}.w13"] = normal(EXPERTS, 2 * INNER, WIDTH, fan_in=WIDTH)
        made[f"{i}.w2"] = normal(EXPERTS, WIDTH, INNER, fan_in=INNER)
    return made


def text(generator):
    """Sequences of a random grammar: after each letter one of two others follows."""
    follows = torch.randint(VOCABULARY, (VOCABULARY, 2), generator=generator)
    letters = [torch.randint(VOCABULARY, (SEQUENCES,), generator=generator)]
    for _ in range(LENGTH):
        choice = torch.randint(2, (SEQUENCES,), generator=generator)
        letters.append(follows[letters[-1], choice])
    return torch.stack(letters, 1)


def eager_experts(x, logits, w13, w2):
    """As a model of plain torch ops has them: a loop over the experts."""
    weights, ids = torch.topk(torch.softmax(logits, -1), TOP_K)
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for expert in range(EXPERTS):
        token, slot = torch.where(ids == expert)
        gate, up = (x[token] @ w13[expert].t()).chunk(2, -1)
        rows = (F.silu(gate) * up) @ w2[expert].t()
        out = out.index_add(0, token, rows * weights[token, slot, None])
    return x + out, ids


def cadre_experts(x, logits, w13, w2):
    weights, ids = cadre.torch.select_experts(logits, TOP_K)
    return cadre.torch.moe_mlp(x, ids, weights, w13, w2, residual=x), ids


class Model:
    def __init__(self, experts, dtype, seed=5):
        self.experts = experts
        made = parameters(torch.Generator().manual_seed(seed))
        # f64 starts from the values that f32 starts from.
        self.parameters = {
            name: each.float().to(dtype).requires_grad_() for name, each in made.items()
        }
        self.optimizer = torch.optim.SGD(self.parameters.values(), lr=0.1, momentum=0.9)

    def loss(self, letters):
        """(loss, chosen experts of every layer as sets, the least distance between a choice and the next best logit)"""
        p = self.parameters
        chosen, margin = [], float("inf")
        x = p["embedding"][letters[:, :-1]]
        for i in range(LAYERS):
            q, k, v = (F.rms_norm(x, (WIDTH,)) @ p[f"{i}.qkv"]).chunk(3, -1)
            x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
            flat = F.rms_norm(x, (WIDTH,)).reshape(-1, WIDTH)
            logits = flat @ p[f"{i}.router"]
            out, ids = self.experts(flat, logits, p[f"{i}.w13"], p[f"{i}.w2"])
            x = x + out.view_as(x)
            chosen.append(ids.sort(-1).values)
            ranked = logits.detach().sort(-1, descending=True).values
            margin = min(margin, (ranked[:, TOP_K - 1] - ranked[:, TOP_K]).min().item())
        logits = F.rms_norm(x, (WIDTH,)) @ p["head"]
        loss = F.cross_entropy(logits.flatten(0, 1), letters[:, 1:].flatten())
        return loss, torch.stack(chosen), margin

    def step(self, letters):
        self.optimizer.zero_grad()
        loss, chosen, margin = self.loss(letters)
        loss.backward()
        self.optimizer.step()
        return loss.item(), chosen, margin

    def distance(self, other):
        """By parameter: the norm of the difference over the parameter's."""
        return {
            name: ((mine.double() - theirs.double()).norm() / theirs.double().norm()).item()
            for (name, mine), theirs in zip(
                self.parameters.items(), other.parameters.values(), strict=True
            )
        }


def test_a_language_model_with_experts_follows_the_eager_one():
    """Each step starts where the last ended, so differences add up over the whole training. How fast they may is known from
    the eager model itself: in f32 and in f64 it differs by what roundings do to this training."""
    letters = text(torch.Generator().manual_seed(3))
    exact, eager = Model(eager_experts, torch.float64), Model(eager_experts, torch.float32)
    ours = Model(cadre_experts, torch.float32)
    unit = torch.finfo(torch.float32).eps
    losses = []
    worst = dict.fromkeys(exact.parameters, unit)
    worst_loss = unit
    for step in range(STEPS):
        loss, chosen, margin = exact.step(letters)
        eager_loss, _, _ = eager.step(letters)
        our_loss, our_chosen, _ = ours.step(letters)
        losses.append(loss)
        worst_loss = max(worst_loss, abs(eager_loss - loss) / loss)
        assert abs(our_loss - loss) / loss <= SLACK * worst_loss, f"loss of step {step}"
        # A choice nearer than the models are to each other would be chance, not a test.
        assert margin > SLACK * max(worst.values()), f"step {step}: another seed is needed"
        assert torch.equal(chosen, our_chosen), f"experts of step {step}"
        for name, distance in eager.distance(exact).items():
            worst[name] = max(worst[name], distance)
        for name, distance in ours.distance(exact).items():
            assert distance <= SLACK * worst[name], f"{name} after step {step}"
    assert losses[-1] < losses[0] / 2, losses
