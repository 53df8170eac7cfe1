"""The feed: batches made ahead are those that would have come, and nothing of them is lost."""

import pytest
import torch
from toy import Backwards, make_trainer, run_until

from regard.errors import TrainError
from regard.train import objective
from regard.train.prefetch import Prefetcher

SIZE = objective("translation").size
CPU = torch.device("cpu")


def ahead(source, count: int = 1) -> Prefetcher:
    """A feed that makes batches in its thread, as for a GPU, but leaves them on the host."""
    feed = Prefetcher(source, SIZE, count, CPU)
    feed.is_async = True
    feed._copy_to_device = lambda batches: (batches, None)
    return feed


def numbers(feed: Prefetcher, updates: int) -> list[list[int]]:
    return [[int(b["source"].sum()) for b in feed.next().batches] for _ in range(updates)]


@pytest.mark.parametrize("count", [1, 3])
def test_made_ahead_or_not_the_same_batches_come(count):
    here, there = Prefetcher(Backwards(), SIZE, count, CPU), ahead(Backwards(), count)
    assert numbers(here, 5) == numbers(there, 5)
    assert here.data_state == there.data_state == {"seed": 0, "position": 5 * count}
    there.close()


def test_what_was_made_ahead_and_not_taken_comes_again():
    feed = ahead(Backwards())
    first = numbers(feed, 2)
    feed.close()
    feed.close()
    assert feed.source.state() == {"seed": 0, "position": 2}
    assert first + numbers(feed, 2) == numbers(Prefetcher(Backwards(), SIZE, 1, CPU), 4)
    feed.restore({"seed": 0, "position": 1})
    assert numbers(feed, 1) == first[1:]
    feed.close()


def test_the_size_of_an_update_is_known_before_it_is_moved():
    fed = Prefetcher(Backwards(rows=2), SIZE, 3, CPU).next()
    assert fed.sizes == [10, 10, 10]  # 2 rows of 6, the first token of each is given
    assert (fed.before["position"], fed.after["position"]) == (0, 3)


def test_an_error_in_the_thread_is_raised_where_batches_are_asked_for():
    class Broken(Backwards):
        def batch(self, n):
            if n == 1:
                raise OSError("a disk was pulled")
            return super().batch(n)

    feed = ahead(Broken())
    feed.next()
    with pytest.raises(OSError, match="a disk was pulled"):
        feed.next()


def test_a_training_fed_from_ahead_is_the_same_and_resumes_the_same(tmp_path):
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
def test_data_that_ends_is_said():
    class Short(Backwards):
        def __iter__(self):
            yield self.batch(0)

    for feed in (ahead(Short()), Prefetcher(Short(), SIZE, 1, CPU)):
        feed.next()
        with pytest.raises(TrainError, match="batches: needs to be without end, got no more after"):
            feed.next()
