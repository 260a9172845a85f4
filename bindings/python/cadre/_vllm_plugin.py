"""vLLM's entry point: what every process of vLLM loads, and what therefore does nothing unless VLLM_PLUGINS names it."""

import os


def plugin() -> None:
    """Has vLLM's unquantised experts computed by cadre, if VLLM_PLUGINS has `cadre` in it."""
    if "cadre" in os.environ.get("VLLM_PLUGINS", "").split(","):
        from .torch.integrations import vllm

        vllm.register()
