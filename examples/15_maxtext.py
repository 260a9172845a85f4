"""MaxText's training with cadre's grouped products: one call before it. Needs MaxText (requirements/maxtext.txt).

    python examples/15_maxtext.py src/maxtext/configs/base.yml model_name=mixtral-8x7b sparse_matmul=True megablox=True
"""

import importlib.util
import runpy
import sys

if importlib.util.find_spec("maxtext") is None:
    sys.exit("examples/15_maxtext.py: this example needs MaxText, on Python 3.12: pip install -r requirements/maxtext.txt")

import cadre.jax.maxtext

if __name__ == "__main__":
    cadre.jax.maxtext.install()
    sys.argv[0] = "maxtext.trainers.pre_train.train"
    runpy.run_module(sys.argv[0], run_name="__main__")
