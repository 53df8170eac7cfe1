"""Planted refutations of claims about vision: the verdict follows the evidence."""

import torch
from torch import nn

from regard.claims import CLAIMS
from regard.claims.families import trained_vision, vision
from regard.ops import sinusoidal


def test_patches_in_another_order_of_pixels(monkeypatch):
    patchify = vision.patchify
    monkeypatch.setattr(vision, "patchify", lambda x, size: patchify(x.mT, size))
    assert CLAIMS["L1"].run().verdict == "false"


def test_a_patch_embedding_without_spatial_bias(monkeypatch):
    class Dense(nn.Module):
        def __init__(self, channels, dim, size):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(dim * size**2, 256))

        def project(self, x):
            return (x.flatten(1) @ self.weight.mT).view(len(x), -1, 4, 4)

        def forward(self, x):
            return self.project(x).flatten(2).mT

    monkeypatch.setattr(vision, "PatchEmbedding", Dense)
    assert CLAIMS["L3"].run().verdict == "true"


def test_a_model_that_sees_the_order_without_positions(monkeypatch):
    class Ordered(vision.VisionTransformer):
        def encode(self, images):
            return super().encode(images * torch.arange(16))

    monkeypatch.setattr(vision, "VisionTransformer", Ordered)
    assert CLAIMS["L4"].run().verdict == "false"


def test_a_table_built_from_rows_and_columns(monkeypatch):
    class Planar(vision.VisionTransformer):
        def __init__(self, config):
            super().__init__(config)
            places = sinusoidal(torch.arange(8), 16)
            rows = torch.cat([places.repeat_interleave(8, 0), places.repeat(8, 1)], -1)
            self.positions.data[1:] = rows

    monkeypatch.setattr(vision, "VisionTransformer", Planar)
    assert CLAIMS["L5"].run().verdict == "true"


def test_a_head_that_pools_the_patches(monkeypatch):
    class Pooled(vision.VisionTransformer):
        def features(self, images):
            return self.encode(images).mean(1)

    monkeypatch.setattr(vision, "VisionTransformer", Pooled)
    assert CLAIMS["L8"].run().verdict == "false"
    assert CLAIMS["L9"].run().verdict == "false"


def test_tables_that_are_always_or_never_local(monkeypatch):
    places = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)).double()
    local = torch.cat([torch.zeros(1, 2).double(), places])
    random = torch.randn(17, 256, generator=torch.Generator().manual_seed(0)).double()
    plant_tables(monkeypatch, [local, local])
    assert CLAIMS["L6"].run().verdict == "true"
    plant_tables(monkeypatch, [random, random])
    assert CLAIMS["L6"].run().verdict == "false"


def test_a_gap_that_stays_and_a_vit_ahead(monkeypatch):
    plant_accuracies(monkeypatch, cnn=[0.9, 0.95, 1.0], vit=[0.7, 0.75, 0.8])
    assert CLAIMS["L10"].run().verdict == "false"
    assert CLAIMS["L11"].run().verdict == "true"
    plant_accuracies(monkeypatch, cnn=[0.7, 0.8, 0.9], vit=[0.9, 0.95, 0.9])
    assert CLAIMS["L10"].run().verdict == CLAIMS["L11"].run().verdict == "false"


def plant_tables(monkeypatch, tables):
    models = [
        trained_vision.VisionModel("ViT", images, seed, None, 1.0, 1.0, dict(enumerate(tables)))
        for images in (100, 6400)
        for seed in range(2)
    ]
    monkeypatch.setattr(trained_vision, "place_study", lambda trial: models)
    monkeypatch.setattr(trained_vision, "shape_study", lambda trial: models)


def plant_accuracies(monkeypatch, **accuracies):
    models = [
        trained_vision.VisionModel(kind, images, seed, None, 1.0, accuracies[kind.lower()][n], {})
        for kind in ("CNN", "ViT")
        for n, images in enumerate((100, 800, 6400))
        for seed in range(2)
    ]
    monkeypatch.setattr(trained_vision, "shape_study", lambda trial: models)
