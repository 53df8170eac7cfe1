"""The training loop on a GPU: no synchronisation, and a NaN loss changes no weight."""

import pytest
import torch
from toy import Backwards, make_trainer, run_until, update

from regard.errors import TrainError
from regard.train import copy_weights, load_last_valid, read_metrics

pytestmark = pytest.mark.gpu


def on_gpu(folder=None, **changes):
    return make_trainer(folder, device="cuda", **changes)


def apart(one, two) -> float:
    return max(float((one[name] - two[name]).abs().max()) for name in one)


# torch says that its check is young and does not see all that waits; what it sees is enough here
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(("rdrop", "precision"), [(0.0, "bf16"), (1.0, "bf16"), (0.0, "fp16")])
def test_no_update_synchronises_with_the_gpu(rdrop, precision):
    trainer = on_gpu(steps=1000, log_every=1000, rdrop=rdrop, precision=precision)
    for _ in range(5):
        update(trainer)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(20):
            update(trainer)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        trainer.prefetcher.close()
    assert len(trainer.updater.read_stats()) == 25


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_nan_loss_is_reported_late_and_later_updates_are_skipped(tmp_path, precision):
    good = on_gpu(steps=6, precision=precision, warmup=0, schedule="constant")
    good.run()
    bad = on_gpu(
        tmp_path, steps=40, log_every=10, precision=precision, warmup=0, schedule="constant",
        save_every=40,
    )  # fmt: skip
    real, calls = bad.objective.loss_sum, []

    def spoilt(*args):
        calls.append(1)
        return real(*args) * (float("nan") if len(calls) == 7 else 1.0)

    bad.objective = bad.objective._replace(loss_sum=spoilt)
    with pytest.raises(TrainError, match=r"update 7, its batch 1 .*'position': 6"):
        bad.run()
    assert len(calls) == 10  # it went on until it looked
    checkpoint, _ = load_last_valid(tmp_path / "checkpoints")
    assert (checkpoint.step, checkpoint.state["data_state"]["position"]) == (6, 6)
    assert apart(checkpoint.model, copy_weights(good.model)) < 1e-5
    assert {float(x) for name, x in checkpoint.optimizer.items() if name.endswith(".step")} == {6.0}


def test_an_interrupted_and_resumed_training_is_nearly_identical(tmp_path):
    whole = on_gpu(precision="float32")
    whole.run()
    first = on_gpu(tmp_path, precision="float32", steps=12)
    run_until(first, 5)
    second = on_gpu(tmp_path, precision="float32")
    second.resume()
    second.run()
    assert apart(copy_weights(second.model), copy_weights(whole.model)) < 1e-4


def test_fp16_learns_as_float32_does():
    losses = []
    for precision in ("float32", "fp16"):
        trainer = on_gpu(
            steps=100, lr=1e-2, precision=precision, dropout=0.0, batches=Backwards(rows=16)
        )
        trainer.run()
        losses.append(trainer.loss)
    assert losses[0] == pytest.approx(losses[1], abs=0.1)
    assert losses[0] < 1.5


def test_fp16_skips_and_counts_updates_that_overflow_and_resumes_its_scale(tmp_path):
    settings = {"precision": "fp16", "dropout": 0.0}
    trainer = on_gpu(tmp_path, steps=12, **settings)
    trainer.updater.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=3)
    before = copy_weights(trainer.model)
    update(trainer)
    assert apart(before, copy_weights(trainer.model)) == 0.0  # skipped
    run_until(trainer, 8)
    lines = read_metrics(tmp_path)
    assert 1 <= lines[-1]["skipped"] < 8
    checkpoint, _ = load_last_valid(tmp_path / "checkpoints")
    steps = {float(x) for name, x in checkpoint.optimizer.items() if name.endswith(".step")}
    assert steps == {8.0 - lines[-1]["skipped"]}
    again = on_gpu(tmp_path, steps=12, **settings)
    again.resume()
    assert again.updater.scaler.get_scale() == lines[-1]["loss_scale"]
    assert again.updater.scaler.get_growth_interval() == 3
    again.run()


def test_a_nan_loss_in_fp16_changes_no_weight(tmp_path):
    bad = on_gpu(tmp_path, steps=40, log_every=10, precision="fp16", save_every=40)
    real, calls = bad.objective.loss_sum, []

    def spoilt(*args):
        calls.append(1)
        return real(*args) * (float("nan") if len(calls) == 7 else 1.0)

    bad.objective = bad.objective._replace(loss_sum=spoilt)
    with pytest.raises(TrainError, match=r"update 7, its batch 1 .*'position': 6"):
        bad.run()
    checkpoint, _ = load_last_valid(tmp_path / "checkpoints")
    steps = {float(x) for name, x in checkpoint.optimizer.items() if name.endswith(".step")}
    assert steps == {6.0 - bad.updater.skipped}


class TwoSizes(Backwards):
    def batch(self, n):
        return {name: x[: self.rows - n % 2] for name, x in super().batch(n).items()}


def torchs_own(test):
    """Without what torch's compiler warns itself and us of."""
    for words in ("`torch.jit.script_method`", "TensorFloat32 tensor cores", "The CUDA Graph is e"):
        test = pytest.mark.filterwarnings(f"ignore:{words}")(test)
    return test


@torchs_own
@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_updates_replayed_as_cuda_graphs_are_the_same(precision):
    losses = []
    for mode in ("off", "on"):
        trainer = on_gpu(
            steps=40, log_every=40, dropout=0.0, precision=precision, compile=mode,
            batches=TwoSizes(),
        )  # fmt: skip
        for _ in range(40):
            update(trainer)
        losses.append([known.loss for known in trainer.updater.read_stats()])
        trainer.prefetcher.close()
    assert losses[0] == pytest.approx(losses[1], rel=1e-3 if precision == "float32" else 0.02)
    from torch._dynamo.utils import counters
    from torch._inductor.cudagraph_trees import get_manager

    assert counters["inductor"]["cudagraph_skips"] == 0
    manager = get_manager(0, create_if_none_exists=False)
    assert manager is not None
    assert manager.new_graph_id().id >= 4  # both ways of both sizes


@torchs_own
def test_a_compiled_training_resumes(tmp_path):
    whole = on_gpu(precision="float32", steps=30, compile="on")
    whole.run()
    run_until(on_gpu(tmp_path, precision="float32", steps=30, compile="on"), 20)
    second = on_gpu(tmp_path, precision="float32", steps=30, compile="on")
    second.resume()
    second.run()
    # what is dropped is drawn otherwise by kernels that are compiled and by those that are not
    assert second.loss == pytest.approx(whole.loss, rel=0.2)


@torchs_own
def test_a_compiled_training_learns_the_same():
    losses = []
    for mode in ("off", "on"):
        trainer = on_gpu(steps=60, lr=1e-2, compile=mode, batches=Backwards(rows=16))
        trainer.run()
        losses.append(trainer.loss)
    assert losses[0] == pytest.approx(losses[1], abs=0.2)
