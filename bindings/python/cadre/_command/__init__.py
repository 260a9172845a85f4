"""The commands of `python -m cadre`, one module for each: add_arguments(parser), run(options) -> exit code, EXAMPLE."""
