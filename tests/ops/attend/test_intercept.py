from dataclasses import replace

import torch
from torch.testing import assert_close

from regard.ops import attend
from regard.ops.intercept import intercepting


def test_a_recorder_receives_every_call_and_changes_nothing():
    q, k, v = torch.randn(3, 2, 5, 4)
    seen = []

    def look(call, proceed):
        out, lse = proceed(call)
        seen.append((call, out, lse))
        return out, lse

    want = attend(q, k, v)
    with intercepting(look):
        got = attend(q, k, v)
    attend(q, k, v)
    assert len(seen) == 1
    assert_close(got, want, rtol=0, atol=0)
    assert seen[0][0].q is q


def test_an_edit_changes_the_call_and_the_latest_interceptor_comes_first():
    q, k, v = torch.randn(3, 2, 5, 4)
    order = []

    def edit(call, proceed):
        order.append("edit")
        return proceed(replace(call, v=2 * call.v))

    def look(call, proceed):
        order.append("look")
        return proceed(call)

    want, _ = attend(q, k, 2 * v)
    with intercepting(look), intercepting(edit):
        got, _ = attend(q, k, v)
    assert_close(got, want)
    assert order == ["edit", "look"]
