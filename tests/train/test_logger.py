"""TensorBoard as an extra: metrics are logged, and its absence raises."""

import sys
from types import ModuleType

import pytest
from toy import make_trainer

from regard.errors import ConfigError
from regard.train.metrics import tensorboard_logger


class Writer:
    made: list = []

    def __init__(self, folder):
        self.folder, self.seen = folder, []
        Writer.made.append(self)

    def add_scalar(self, name, value, step):
        self.seen.append((name, value, step))

    def flush(self):
        pass


def test_every_metric_is_logged_with_its_step(tmp_path, monkeypatch):
    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    trainer = make_trainer(
        steps=2, evaluate=lambda model: {"loss": 0.5, "signature": "words"}, evaluate_every=2
    )
    trainer.loggers = (tensorboard_logger(tmp_path),)
    trainer.run()
    (writer,) = Writer.made
    assert writer.folder == str(tmp_path / "tensorboard")
    assert ("valid/loss", 0.5, 2) in writer.seen
    assert ("loss", trainer.loss, 2) in writer.seen
    assert {name for name, *_ in writer.seen} == {
        "loss", "lr", "grad_norm", "count", "seconds", "valid/loss",
    }  # fmt: skip


@pytest.mark.usefixtures("users_view")
def test_a_missing_tensorboard_raises_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"got none; try pip install 'regard\[tensorboard\]'"):
        tensorboard_logger(tmp_path)
