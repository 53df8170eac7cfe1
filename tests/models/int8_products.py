"""Run as a script: how many integer products are wrong here, and how far a quantised model is off.

oneDNN reads `ONEDNN_MAX_CPU_ISA` once per process, so each instruction set needs its own.
"""

import torch

from regard import models
from regard.nn.int8 import PackedInt8Linear


def wrong_products() -> int:
    """Products that differ from the integer ones: extreme and random values, widths 2 to 256."""
    wrong = 0
    for dim in (*range(2, 18), 31, 32, 33, 63, 64, 65, 127, 128, 200, 255, 256):
        extreme = torch.full((6, dim), 127)
        extreme[1::2] *= -1  # each pair of products as large as it can be, of either sign
        extreme[4:, ::2] *= -1
        for whole in (extreme, torch.randint(-127, 128, (6, dim))):
            whole[:, 0] = 127  # the scale of each row is 1
            product = PackedInt8Linear(whole.float(), None)
            top = product.steps
            for rows in (1, 3, 17):
                for x in (torch.full((rows, dim), top), torch.randint(-top, top + 1, (rows, dim))):
                    x[:, 0] = top
                    got, want = product(x.float()), x.double() @ whole.double().mT
                    wrong += int((got.double() - want).abs().ge(0.5).sum())
    return wrong


def relative_error() -> float:
    """Distance of a quantised model's logits from those in float."""
    torch.manual_seed(0)
    model = models.build(models.translator_tiny(vocab=11, dim=64)).eval()
    given = torch.randint(3, 11, (4, 9)), torch.randint(3, 11, (4, 9))
    want = model(*given)
    return float((models.quantize(model)(*given) - want).norm() / want.norm())


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        print(PackedInt8Linear(torch.eye(2), None).steps, wrong_products(), relative_error())
