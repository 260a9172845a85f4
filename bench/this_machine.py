"""What the result files of CPU benchmarks in Python say of the machine."""

import os


def machine():
    """Its processor with family and model, since virtual machines often say no more than "AMD EPYC", and its CPUs."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        fields = dict(line.split(":", 1) for line in lines.read().split("\n\n")[0].splitlines() if ":" in line)
    found = {name.strip(): value.strip() for name, value in fields.items()}
    model = f"{found.get('model name', 'unknown CPU')}, family {found.get('cpu family')}, model {found.get('model')}"
    return {"model": model, "logical_cpus": os.cpu_count()}
