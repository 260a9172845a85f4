"""vLLM's experts over cadre: one environment variable. Needs vLLM and a GPU. Not run yet: written to vLLM's interface.

    VLLM_PLUGINS=cadre vllm serve Qwen/Qwen3-30B-A3B

The same for a model in this process, with the batch invariance that both sides promise.
"""

import os
import sys

os.environ["VLLM_PLUGINS"] = "cadre"
os.environ["VLLM_BATCH_INVARIANT"] = "1"
try:
    import vllm
except ImportError:
    sys.exit("examples/14_vllm.py: this example needs vLLM and a GPU: pip install vllm")

if __name__ == "__main__":
    model = vllm.LLM(sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen3-30B-A3B", moe_backend="triton")
    prompts = ["Experts are", "A small group of", "The router chose"]
    options = vllm.SamplingParams(temperature=0, max_tokens=16)
    together = [each.outputs[0].text for each in model.generate(prompts, options)]
    alone = [model.generate([prompt], options)[0].outputs[0].text for prompt in prompts]
    print("the same text alone and in a batch:", together == alone)
