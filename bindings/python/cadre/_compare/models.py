"""Expert layers of known models, by name or by their four numbers."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Layer:
    """`experts` of which a token takes `top_k`; each has w13 [2 * intermediate, hidden] and w2 [hidden, intermediate]."""

    name: str
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    clamped: bool = False  # gpt-oss: biases and the clamped swiglu

    def weight_elements(self, experts=None):
        return 3 * (self.experts if experts is None else experts) * self.hidden * self.intermediate

    def flops(self, rows):
        """Multiplications and additions of the two products, forward."""
        return 6 * rows * self.hidden * self.intermediate


LAYERS = {
    layer.name: layer
    for layer in (
        Layer("mixtral-8x7b", 8, 2, 4096, 14336),
        Layer("qwen3-30b", 128, 8, 2048, 768),
        Layer("qwen3-235b", 128, 8, 4096, 1536),
        Layer("gpt-oss-120b", 128, 4, 2880, 2880, clamped=True),
        Layer("dsv3", 256, 8, 7168, 2048),
        Layer("kimi-k2", 384, 8, 7168, 2048),
    )
}
_FORM = "EXPERTS,TOP_K,HIDDEN,INTERMEDIATE (64,8,2048,1408)"


def named(text):
    """The layer that a word of the command line means: a model's, or one of four numbers."""
    if text in LAYERS:
        return LAYERS[text]
    numbers = text.split(",")
    if len(numbers) != 4 or not all(number.isdecimal() and int(number) for number in numbers):
        raise ValueError(f"MODEL = {text}, expected one of {', '.join(LAYERS)}, or {_FORM}")
    layer = Layer(text, *map(int, numbers))
    if layer.top_k > layer.experts:
        raise ValueError(f"MODEL = {text}, expected TOP_K at most EXPERTS = {layer.experts}")
    if max(map(int, numbers)) > 1 << 20:
        raise ValueError(f"MODEL = {text}, expected numbers up to {1 << 20}")
    return layer
