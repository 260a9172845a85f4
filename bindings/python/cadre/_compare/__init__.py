"""What `cadre compare` measures: layers of known models, the same layer by cadre and by what its user has, and a clock.

models.py has the layers, case.py their numbers and the check of a result, one module for each front its contenders,
clock.py the rounds. The command itself, with what it prints, is _command/compare.py.
"""
