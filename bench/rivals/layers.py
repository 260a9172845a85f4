"""The layers of bench/shapes/shapes.cc for the Python benchmarks: name: experts, rows, k, n."""

TRAINING = {
    "mixtral-8x7b-w13": (8, 16384, 4096, 28672),
    "mixtral-8x7b-w2": (8, 16384, 14336, 4096),
    "dsv3-ep8-w13": (32, 65536, 7168, 4096),
    "dsv3-ep8-w2": (32, 65536, 2048, 7168),
    "qwen3-235b-w13": (128, 65536, 4096, 3072),
    "qwen3-235b-w2": (128, 65536, 1536, 4096),
    "qwen3-30b-w13": (128, 65536, 2048, 1536),
    "qwen3-30b-w2": (128, 65536, 768, 2048),
    "gpt-oss-120b-w13": (128, 32768, 2880, 5760),
    "gpt-oss-120b-w2": (128, 32768, 2880, 2880),
}
DECODE = {
    "decode-dsv3-ep8-w13": (32, 512, 7168, 4096),
    "decode-qwen3-235b-w13": (128, 1024, 4096, 3072),
    "decode-qwen3-30b-w2": (128, 1024, 768, 2048),
    "decode-gpt-oss-120b-w13": (128, 256, 2880, 5760),
}
