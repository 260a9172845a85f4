"""torch's DataLoader forks its workers: a call there, after a first call in the parent."""

import os
import subprocess
import sys

CODE = """
import cadre, cadre.torch, torch

generator = torch.Generator().manual_seed(3)
x = torch.randn(96, 160, generator=generator)
w = torch.randn(3, 160, 136, generator=generator)
sizes = torch.tensor([40, 0, 56])

class Products(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        torch_front = cadre.torch.gmm(x, w, sizes)
        numpy_front = torch.from_numpy(cadre.gmm(x.numpy(), w.numpy(), sizes.numpy()))
        return torch_front, numpy_front

expected = cadre.torch.gmm(x, w, sizes)
loader = torch.utils.data.DataLoader(
    Products(), num_workers=2, batch_size=2, multiprocessing_context="fork"
)
seen = 0
for batch in loader:
    for results in batch:
        assert all(torch.equal(result, expected) for result in results)
        seen += len(results)
assert seen == 12
"""


def test_data_loader_after_a_call():
    result = subprocess.run(
        [sys.executable, "-c", CODE],
        check=False,
        env={**os.environ, "CADRE_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0, result.stderr
