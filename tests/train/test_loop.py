"""The training loop: one update by hand, interruption, exact resume."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from toy import Backwards, make_trainer, run_until, update

from regard.errors import ConfigError, FileError, TrainError
from regard.train import (
    TrainConfig,
    copy_weights,
    defer_signals,
    list_checkpoints,
    load_checkpoint,
    load_last_valid,
    loop,
    read_metrics,
)
from regard.train import distributed as module

HERE = Path(__file__).resolve().parent


def same_weights(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    one, two = copy_weights(a), copy_weights(b)
    return all(torch.equal(one[name], two[name]) for name in one)


def timeless(folder: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in read_metrics(folder)]


# ---- worked numbers


def test_one_update_is_adamw_on_the_mean_over_tokens_with_a_clipped_gradient():
    # a large eps: the bias of keys has no gradient but noise, which Adam would blow up
    trainer = make_trainer(steps=1, warmup=0, schedule="constant", eps=1e-3)
    other = make_trainer().model
    trainer.model.eval(), other.eval()
    for p in (trainer.model, other):
        p.train = lambda mode=True, p=p: p  # no dropout, so that the two can be compared
    batch = Backwards().batch(0)
    logits = other(batch["source"], batch["target"][:, :-1])
    F.cross_entropy(logits.mT, batch["target"][:, 1:]).backward()
    norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    assert norm > 1  # or clipping would not be seen
    matrices = [p for p in other.parameters() if p.ndim > 1]
    vectors = [p for p in other.parameters() if p.ndim < 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.01).step()
    trainer.run()
    for name, p in other.named_parameters():
        assert_close(trainer.model.get_parameter(name), p, msg=name)


def test_a_small_model_learns_to_write_backwards():
    trainer = make_trainer(steps=120, lr=1e-2, batches=Backwards(rows=16))
    trainer.run()
    assert trainer.loss < 1.2  # from ln 8 = 2.1


# ---- properties


def test_gradient_accumulation_equals_one_large_batch():
    class Halves(Backwards):
        def batch(self, n):
            whole = super().batch(n // 2)
            cut = slice(0, 2) if n % 2 == 0 else slice(2, None)  # of unequal size
            return {name: x[cut] for name, x in whole.items()}

    one = make_trainer(steps=1, eps=1e-3)
    two = make_trainer(steps=1, eps=1e-3, accumulate=2, batches=Halves())
    for trainer in (one, two):
        trainer.model.apply(lambda m: setattr(m, "p", 0.0) if hasattr(m, "p") else None)
        trainer.run()
    assert one.loss == pytest.approx(two.loss, rel=1e-5)
    for name, p in one.model.named_parameters():
        assert_close(two.model.get_parameter(name), p, atol=1e-5, rtol=1e-4)


def test_an_evaluation_does_not_affect_training():
    def waste(model):
        assert not model.training
        return {"loss": float(torch.rand(())), "exact": 0.0}

    watched = make_trainer(evaluate=waste, evaluate_every=2)
    watched.run()
    plain = make_trainer()
    plain.run()
    assert same_weights(watched.model, plain.model)
    assert watched.model.training


def test_a_hang_up_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with defer_signals() as request:
            signal.raise_signal(signal.SIGHUP)
        assert (request.signal, signal.getsignal(signal.SIGHUP)) == (None, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("stop", "kind"), [(1, signal.SIGTERM), (4, signal.SIGHUP), (7, signal.SIGINT)]
)
def test_an_interrupted_and_resumed_training_is_bit_identical(tmp_path, stop, kind, request):
    if signal.getsignal(kind) == signal.SIG_IGN:  # these tests run under nohup
        signal.signal(kind, signal.SIG_DFL)
        request.addfinalizer(lambda: signal.signal(kind, signal.SIG_IGN))

    def score(model):
        return {"loss": float(model.target_embedding.token_embeddings.sum())}

    settings = {"evaluate": score, "evaluate_every": 3}
    whole = make_trainer(tmp_path / "whole", **settings)
    whole.run()

    class Stopping(Backwards):
        def batch(self, n):
            if n == stop - 1:
                signal.raise_signal(kind)
            return super().batch(n)

    first = make_trainer(tmp_path / "parts", batches=Stopping(), **settings)
    outcome = first.run()
    assert (outcome.step, outcome.reason, outcome.signal) == (stop, "interrupted", kind)
    second = make_trainer(tmp_path / "parts", **settings)
    torch.manual_seed(99)  # the state on disk counts, not what happens to be here
    assert second.resume() == []
    assert second.step == stop
    outcome = second.run()
    assert outcome.reason == "finished"
    assert same_weights(second.model, whole.model)
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


@pytest.fixture
def terminal():
    """Ctrl-C as in a terminal; a background shell starts its programs with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("terminal")
def test_sigint_stops_after_the_update_and_a_second_one_at_once(tmp_path):
    class Twice(Backwards):
        def batch(self, n):
            signal.raise_signal(signal.SIGINT)
            return super().batch(n)

    assert make_trainer(tmp_path, batches=Twice()).run().signal == signal.SIGINT
    assert load_last_valid(tmp_path / "checkpoints")[0].step == 1

    class Impatient(Twice):
        def batch(self, n):
            super().batch(n)
            return super().batch(n)

    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path / "b", batches=Impatient()).run()


def test_resume_falls_back_to_the_previous_checkpoint(tmp_path):
    whole = make_trainer(tmp_path, steps=12)
    whole.run()
    (list_checkpoints(tmp_path / "checkpoints")[-1] / "model.safetensors").write_bytes(b"damaged")
    again = make_trainer(tmp_path, steps=12)
    (problem,) = again.resume()
    assert "step-00000012" in problem
    assert again.step == 8
    again.run()
    assert same_weights(again.model, whole.model)


def test_a_nan_loss_raises_and_saves_the_state_before_it(tmp_path):
    trainer, calls = make_trainer(tmp_path), torch.zeros(())
    trainer.model.register_buffer("calls", calls)  # a running statistic
    trainer.parallel.buffers = (calls,)
    good = trainer.objective.loss_sum

    def spoilt(*args):
        calls.add_(1)
        total = good(*args)
        return total * float("nan") if trainer.batches.position == 6 else total

    trainer.objective = trainer.objective._replace(loss_sum=spoilt)
    with pytest.raises(TrainError, match=r"got nan .*update 6, its batch 1 .*'position': 5.*try"):
        trainer.run()
    checkpoint, _ = load_last_valid(tmp_path / "checkpoints")
    assert checkpoint.step == 5
    assert (
        checkpoint.state["data_state"]["position"] == 5
    )  # the bad batch comes again, to be looked at
    assert all(x.isfinite().all() for x in checkpoint.model.values())
    assert checkpoint.model["calls"] == 5


def test_early_stopping_counts_across_a_resume(tmp_path):
    """Two stale evaluations before the interruption and one after are three."""
    scores, settings = [3.0, 2.0, 2.5, 2.1, 2.2, 1.0], {"evaluate_every": 1, "patience": 3}
    first = make_trainer(tmp_path, evaluate=scores_of(*scores[:4]), **settings)
    run_until(first, 4)
    assert (first.stale_evaluations, first.best) == (2, 2.0)
    second = make_trainer(tmp_path, evaluate=scores_of(*scores[4:]), **settings)
    assert second.resume() == []
    assert (second.stale_evaluations, second.best) == (2, 2.0)
    outcome = second.run()
    assert (outcome.step, outcome.reason, outcome.weights_step) == (5, "stopped early", 2)


def test_a_resume_needs_the_saved_step_or_more(tmp_path):
    make_trainer(tmp_path).run()
    with pytest.raises(ConfigError, match="steps: needs at least 12, the saved step of .* got 8"):
        make_trainer(tmp_path, steps=8).resume()
    again = make_trainer(tmp_path)
    again.resume()
    assert again.run().step == 12


def test_early_stopping():
    scores = iter([3.0, 2.0, 2.5, 2.1, 9.0, 9.0])
    trainer = make_trainer(
        evaluate=lambda model: {"loss": next(scores)}, evaluate_every=1, patience=2
    )
    outcome = trainer.run()
    assert (outcome.step, outcome.reason) == (4, "stopped early")
    assert trainer.best == 2.0


def test_early_stopping_counts_on_after_a_resume(tmp_path):
    settings = {"evaluate_every": 1, "save_every": 1, "patience": 3}
    first = make_trainer(tmp_path, evaluate=scores_of(3.0, 2.0, 2.5, 2.1), **settings)
    run_until(first, 4)  # two evaluations after the best one
    again = make_trainer(tmp_path, evaluate=scores_of(9.0, 9.0, 9.0), **settings)
    again.resume()
    assert again.run()[:2] == (5, "stopped early")


def test_the_final_weights_are_the_mean_of_the_last_checkpoints(tmp_path):
    trainer = make_trainer(tmp_path, average_last=3)
    trainer.run()
    checkpoints = [load_checkpoint(place) for place in list_checkpoints(tmp_path / "checkpoints")]
    tables = [one.model["source_embedding.token_embeddings"] for one in checkpoints]
    assert len(tables) == 3
    assert_close(trainer.model.source_embedding.token_embeddings, torch.stack(tables).mean(0))


def scores_of(*values: float):
    """An evaluation with these scores, in turn."""
    left = iter(values)
    return lambda model: {"loss": next(left), "accuracy": 0.5}


def weights_after(step: int) -> dict[str, torch.Tensor]:
    """The weights of an uninterrupted training after an update."""
    trainer = make_trainer()
    for _ in range(step):
        update(trainer)
    trainer.prefetcher.close()
    return copy_weights(trainer.model)


def has_weights(trainer, weights: dict[str, torch.Tensor]) -> bool:
    own = copy_weights(trainer.model)
    return all(torch.equal(own[name], x) for name, x in weights.items())


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_final_weights_are_those_of_the_best_evaluation(tmp_path, on_disk):
    folder = tmp_path if on_disk else None
    # evaluated at 5, 10 and 12, saved at 4, 8 and 12
    trainer = make_trainer(folder, evaluate=scores_of(2.0, 1.0, 1.5), evaluate_every=5)
    outcome = trainer.run()
    assert (outcome.step, outcome.weights_step, outcome.scores["loss"]) == (12, 10, 1.0)
    assert has_weights(trainer, weights_after(10))
    last = make_trainer(evaluate=scores_of(2.0, 1.0, 1.5), evaluate_every=5, final="last")
    assert last.run().weights_step == 12
    assert has_weights(last, weights_after(12))


def test_early_stopping_and_keep_last_keep_the_best_weights(tmp_path):
    scores = scores_of(9.0, 1.0, *[2.0] * 8)
    settings = {"evaluate_every": 1, "save_every": 1, "keep_last": 1, "patience": 6}
    trainer = make_trainer(tmp_path, evaluate=scores, **settings)
    outcome = trainer.run()
    assert (outcome.step, outcome.reason, outcome.weights_step) == (8, "stopped early", 2)
    assert has_weights(trainer, weights_after(2))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["best-00000002", "step-00000008"]


@pytest.mark.parametrize("monitor", ["loss", "accuracy"])
def test_an_evaluation_of_nan_is_never_the_best(monitor):
    values = iter([math.nan, 2.0, math.nan, 1.0])
    trainer = make_trainer(
        evaluate=lambda model: {monitor: next(values)}, evaluate_every=3, monitor=monitor
    )
    assert trainer.run().weights_step == (12 if monitor == "loss" else 6)
    assert trainer.best == (1.0 if monitor == "loss" else 2.0)
    assert trainer.config.is_better(9.0, math.nan)  # of a checkpoint written before


def test_of_equal_evaluations_the_last_is_best(tmp_path):
    trainer = make_trainer(
        tmp_path, evaluate=scores_of(1.0, 1.0, 1.0), evaluate_every=4, monitor="accuracy"
    )
    assert trainer.run().weights_step == 12


def test_best_weights_of_a_lost_continuation_are_not_taken(tmp_path):
    run_until(make_trainer(tmp_path, evaluate=scores_of(3.0, 1.0), evaluate_every=3), 7)
    checkpoints = tmp_path / "checkpoints"
    shutil.rmtree(checkpoints / "step-00000007")  # killed before it was saved
    again = make_trainer(tmp_path, evaluate=scores_of(4.0, 5.0, 6.0), evaluate_every=3)
    again.resume()
    assert (again.step, again.best) == (4, 3.0)
    assert again.run().weights_step == 3
    assert has_weights(again, weights_after(3))


def fp16_trainer(monkeypatch, folder=None, **scaling):
    """A training in float16 on the CPU, which is slow, and refused outside of tests."""
    monkeypatch.setattr(loop, "select_device", lambda *_: torch.device("cpu"))
    trainer = make_trainer(folder, precision="fp16")
    trainer.updater.scaler = torch.amp.GradScaler("cpu", **scaling)
    return trainer


def test_fp16_trains_float32_weights_as_float32_does(monkeypatch):
    half = fp16_trainer(monkeypatch)
    half.run()
    full = make_trainer()  # of the same seed: the same dropout
    full.run()
    assert half.loss != full.loss
    assert half.loss == pytest.approx(full.loss, rel=0.01)
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}


def test_updates_whose_scaled_gradients_overflow_are_skipped_counted_and_resumed(
    tmp_path, monkeypatch
):
    scaling = {"init_scale": 2.0**22, "growth_interval": 3}
    whole = fp16_trainer(monkeypatch, tmp_path / "whole", **scaling)
    whole.run()
    lines = read_metrics(tmp_path / "whole")
    assert 0 < lines[0]["skipped"] <= lines[-1]["skipped"] < 12
    assert lines[0]["loss_scale"] == 2.0**21
    assert "grad_norm" not in lines[0]
    checkpoint, _ = load_last_valid(tmp_path / "whole" / "checkpoints")
    steps = {float(x) for name, x in checkpoint.optimizer.items() if name.endswith(".step")}
    assert steps == {12.0 - lines[-1]["skipped"]}
    run_until(fp16_trainer(monkeypatch, tmp_path / "parts", **scaling), 6)
    again = fp16_trainer(monkeypatch, tmp_path / "parts")
    again.resume()
    again.run()
    assert same_weights(again.model, whole.model)
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


def test_gradients_that_overflow_at_every_scale_raise(tmp_path, monkeypatch):
    trainer = fp16_trainer(monkeypatch, tmp_path, init_scale=2.0**120)
    trainer.config = replace(trainer.config, steps=40)
    with pytest.raises(TrainError, match=r"gradient norm (inf|nan)\) in update 20"):
        trainer.run()


@pytest.mark.slow
def test_a_training_killed_at_random_times_and_resumed_is_bit_identical(tmp_path):
    code = (
        "import sys; from toy import make_trainer; "
        "t = make_trainer(sys.argv[1], steps=400, save_every=5); t.resume(); t.run()"
    )
    env = os.environ | {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}

    def start(folder: Path) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", code, str(folder)], env=env)

    assert start(tmp_path / "whole").wait() == 0
    rng, metrics = random.Random(0), tmp_path / "parts/metrics.jsonl"

    def logged() -> int:
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    for _ in range(5):
        last = logged() + 10  # in steps, since the seconds they take depend on the CPU
        with start(tmp_path / "parts") as run:
            while logged() < last:
                assert run.poll() is None
                time.sleep(0.001)
            time.sleep(rng.uniform(0.0, 0.05))  # into an update, a line or a checkpoint
            run.kill()
        assert run.returncode == -signal.SIGKILL
    assert start(tmp_path / "parts").wait() == 0
    one, _ = load_last_valid(tmp_path / "whole" / "checkpoints")
    two, _ = load_last_valid(tmp_path / "parts" / "checkpoints")
    assert one.step == two.step == 400
    assert all(torch.equal(one.model[name], two.model[name]) for name in one.model)
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


# ---- errors


def test_a_truncated_line_of_metrics_is_skipped(tmp_path):
    whole = {"step": 1, "seconds": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(whole) + '\n{"step": 2, "lo')
    assert read_metrics(tmp_path) == [whole]


@pytest.mark.usefixtures("users_view")
def test_invalid_trainings_raise(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"metrics\.jsonl: cannot be written, "):
        make_trainer(tmp_path / "file").run()
    with pytest.raises(ConfigError, match="folder: needs one to resume from, got none"):
        make_trainer().resume()
    with pytest.raises(ConfigError, match="monitor: needs one of loss, got 'blue'"):
        make_trainer(evaluate=lambda model: {"loss": 1.0}, monitor="blue", evaluate_every=1).run()
    for precision in ("bf16", "fp16"):
        with pytest.raises(ConfigError, match=f"needs a CUDA device for {precision}, got cpu"):
            make_trainer(precision=precision)
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device: needs a CUDA device for cuda, got none here"):
        module.select_device(TrainConfig(steps=1, device="cuda"))
