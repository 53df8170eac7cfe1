"""The ranks of a distributed training in a test: python rank_worker.py JOB…

One process imports torch and forks WORLD_SIZE ranks; it prints their exit codes. A job is JSON:
the strategy (ddp, fsdp, none), how many steps, the folder of its checkpoints, …
"""

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import torch

from regard import data, models
from regard.errors import RegardError
from regard.train import TrainConfig, Trainer, copy_weights, objective
from regard.train.distributed import Ranks, init_distributed, shutdown_distributed

BATCHES = 6  # per update, over all ranks: 6 of one rank, 3 of each of two, 2 of each of three
VOCAB = 12


def pairs(n: int) -> dict[str, list[int]]:
    generator = torch.Generator().manual_seed(n)
    ids = torch.randint(3, VOCAB, (2 + n % 5,), generator=generator).tolist()  # of unequal lengths
    return {"source": ids, "target": [1, *ids[::-1], 2]}


def make(ranks: Ranks, strategy: str, folder: Path | None, **changes) -> Trainer:
    torch.manual_seed(5)
    model = models.Translator(
        models.translator_tiny(VOCAB, dim=16, heads=2, layers=1, decoder_layers=1, dropout=0.0)
    )
    batches = data.Batches(
        data.InMemorySource(train=range(300)),
        pairs,
        split="train",
        batch_tokens=24,
        rank=ranks.rank,
        world_size=ranks.world_size,
        sort_window=64,
    )
    settings = {"steps": 6, "warmup": 2, "lr": 3e-3, "eps": 1e-4, "log_every": 1, "save_every": 3}
    config = TrainConfig(
        device="cpu",
        parallel=strategy,
        accumulate=BATCHES // ranks.world_size,
        **(settings | changes),
    )
    return Trainer(model, objective("translation"), batches, config, folder=folder, ranks=ranks)


def work(ranks: Ranks, job: dict) -> None:
    folder = Path(job["folder"])
    trainer = make(ranks, job["strategy"], folder, **job.get("changes", {}))
    if job.get("resume"):
        trainer.resume()
    spoil(trainer, ranks, job)
    if "scores" in job:  # of rank 0, in turn
        scores = iter(job["scores"])
        trainer.evaluate = lambda model: {"loss": next(scores)}
    report = {"began": trainer.step}
    try:
        outcome = trainer.run()
        report |= {"step": outcome.step, "reason": outcome.reason, "signal": outcome.signal}
        report["weights_step"] = outcome.weights_step
    except RegardError as error:
        report["error"] = f"{type(error).__name__}: {error}"
    (folder / f"report-{ranks.rank}.json").write_text(json.dumps(report))
    if report.get("reason") == "finished" and ranks.is_first:
        torch.save(copy_weights(trainer.model), folder / "end.pt")


def spoil(trainer: Trainer, ranks: Ranks, job: dict) -> None:
    """Let an event happen to one rank before one of its updates."""
    event, who, when = job.get("event"), job.get("to", 0), job.get("before", 0)
    real, total = trainer.updater.step, trainer.objective.loss_sum

    def update(*args):
        if ranks.rank == who and trainer.step + 1 == when:
            if event == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif event == "term":
                signal.raise_signal(signal.SIGTERM)
        return real(*args)

    def spoilt(*args):
        bad = event == "nan" and ranks.rank == who and trainer.step + 1 == when
        return total(*args) * (float("nan") if bad else 1.0)

    trainer.updater.step = update  # type: ignore[method-assign]
    trainer.objective = trainer.objective._replace(loss_sum=spoilt)


def run_rank(rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    here = init_distributed("cpu")
    for job in map(json.loads, sys.argv[1:]):
        Path(job["folder"]).mkdir(parents=True, exist_ok=True)
        work(here, job)
    shutdown_distributed()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in ("distributed.fsdp", "distributed.checkpoint.hf_storage", "_dynamo"):
        import_module(f"torch.{name}")  # here once, not in each rank
    ranks = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            run_rank(rank)
            sys.exit()
    print([os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks])
