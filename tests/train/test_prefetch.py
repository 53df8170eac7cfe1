"""Prefetching: the same batches in the same order, and none is lost."""

import pytest
import torch
from toy import Backwards, make_trainer, run_until

from regard.errors import TrainError
from regard.train import objective
from regard.train.prefetch import Prefetcher

SIZE = objective("translation").size
CPU = torch.device("cpu")


def background(source, count: int = 1) -> Prefetcher:
    """A Prefetcher with its thread, as for a GPU, but without copies to a device."""
    prefetcher = Prefetcher(source, SIZE, count, CPU)
    prefetcher.is_async = True
    prefetcher._copy_to_device = lambda batches: (batches, None)
    return prefetcher


def numbers(prefetcher: Prefetcher, updates: int) -> list[list[int]]:
    return [[int(b["source"].sum()) for b in prefetcher.next().batches] for _ in range(updates)]


@pytest.mark.parametrize("count", [1, 3])
def test_prefetched_batches_are_the_same(count):
    here, there = Prefetcher(Backwards(), SIZE, count, CPU), background(Backwards(), count)
    assert numbers(here, 5) == numbers(there, 5)
    assert here.data_state == there.data_state == {"seed": 0, "position": 5 * count}
    there.close()


def test_prefetched_batches_that_were_not_taken_come_again():
    prefetcher = background(Backwards())
    first = numbers(prefetcher, 2)
    prefetcher.close()
    prefetcher.close()
    assert prefetcher.source.state() == {"seed": 0, "position": 2}
    assert first + numbers(prefetcher, 2) == numbers(Prefetcher(Backwards(), SIZE, 1, CPU), 4)
    prefetcher.restore({"seed": 0, "position": 1})
    assert numbers(prefetcher, 1) == first[1:]
    prefetcher.close()


def test_sizes_and_states_of_an_update():
    update = Prefetcher(Backwards(rows=2), SIZE, 3, CPU).next()
    assert update.sizes == [10, 10, 10]  # 2 rows of 6, the first token of each is given
    assert (update.before["position"], update.after["position"]) == (0, 3)


def test_an_error_in_the_thread_is_raised_by_next():
    class Broken(Backwards):
        def batch(self, n):
            if n == 1:
                raise OSError("a disk was pulled")
            return super().batch(n)

    prefetcher = background(Broken())
    prefetcher.next()
    with pytest.raises(OSError, match="a disk was pulled"):
        prefetcher.next()


def test_a_training_with_prefetching_is_bit_identical_after_a_resume(tmp_path):
    whole = make_trainer()
    whole.run()
    first = make_trainer(tmp_path)
    first.prefetcher.is_async = True
    first.prefetcher._copy_to_device = lambda batches: (batches, None)
    run_until(first, 5)
    second = make_trainer(tmp_path)
    second.resume()
    assert second.step == 5
    second.run()
    one, two = whole.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.usefixtures("users_view")
def test_a_finite_source_raises():
    class Short(Backwards):
        def __iter__(self):
            yield self.batch(0)

    for prefetcher in (background(Short()), Prefetcher(Short(), SIZE, 1, CPU)):
        prefetcher.next()
        with pytest.raises(TrainError, match="batches: needs to be without end, got no more after"):
            prefetcher.next()
