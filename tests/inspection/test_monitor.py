"""The monitor of a training equals eager maps, and changes nothing."""

import json
import math

import pytest
import torch
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.errors import ConfigError, FileError
from regard.ops.intercept import intercepting


def language(**changes):
    return models.LanguageModel(models.language_tiny(vocab=10, dropout=0.0, **changes))


def train(model, steps, monitor=None, after=lambda: None):
    losses = []
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.arange(20).view(2, 10) % 10
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].mT, tokens[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if monitor is not None:
            monitor.step()
        optimiser.step()
        after()
    return losses


def test_statistics_match_the_whole_map():
    model, tokens = language(), torch.arange(20).view(2, 10) % 10
    kept = []

    def keep(call, proceed):
        kept.append((call, *proceed(call)))
        return kept[-1][1:]

    with intercepting(keep):
        loss = model(tokens).square().sum()
    with rg.inspection.AttentionMonitor(model, every=1) as monitor:
        model(tokens).square().sum().backward()
        records = monitor.step()
    assert [record["site"] for record in records] == ["decoder.0.self", "decoder.1.self"]
    for record, (call, out, _) in zip(records, kept, strict=True):
        scores = (call.q @ call.k.mT) * call.terms.scale
        scores = scores.masked_fill(torch.ones(10, 10).triu(1).bool(), -torch.inf)
        w = scores.softmax(-1)
        entropy = torch.special.entr(w).sum(-1).mean((0, 2))
        grad = torch.autograd.grad(loss, out, retain_graph=True)[0]
        assert_close(torch.tensor(record["entropy"]), entropy.detach())
        assert_close(torch.tensor(record["first_share"]), w[..., :4].sum(-1).mean((0, 2)).detach())
        assert_close(torch.tensor(record["max_score"]), scores.amax((0, 2, 3)).detach())
        norm = grad.square().sum((0, 2, 3)).sqrt()
        assert_close(torch.tensor(record["gradient"]), norm, rtol=1e-4, atol=1e-6)


def test_training_with_the_monitor_is_bit_identical():
    torch.manual_seed(1)
    plain = train(language(), 5)
    torch.manual_seed(1)
    model = language()
    with rg.inspection.AttentionMonitor(model, every=2) as monitor:
        watched = train(model, 5, monitor)
    assert watched == plain
    assert [r["step"] for r in monitor.records] == [0, 0, 2, 2, 4, 4]


def test_steps_that_are_not_due_have_no_hook_and_no_attendant():
    from regard.ops import intercept

    model = language()
    with rg.inspection.AttentionMonitor(model, every=3) as monitor:
        assert intercept.is_intercepted(model)
        train(model, 1, monitor)
        assert not intercept.is_intercepted(model)
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert monitor.step_count == 1


def test_micro_batches_are_added_up_and_validation_is_left_out():
    model, tokens = language(), torch.randint(10, (4, 6))

    def seen(*batches):
        with rg.inspection.AttentionMonitor(model, every=1) as monitor:
            for batch in batches:
                model(batch).square().sum().backward()
            with torch.no_grad():
                model(torch.zeros(1, 6).long())
            return monitor.step()

    for whole, parts in zip(seen(tokens), seen(tokens[:2], tokens[2:]), strict=True):
        for name in ("entropy", "max_score", "first_share", "gradient"):
            assert whole[name] == pytest.approx(parts[name], rel=1e-4)


def test_it_appends_one_json_line_per_site(tmp_path):
    model, path = language(), tmp_path / "attention.jsonl"
    with rg.inspection.AttentionMonitor(model, every=2, output=path) as monitor:
        train(model, 3, monitor)
    with rg.inspection.AttentionMonitor(
        model, every=2, output=path, at="*.1.self", start_step=4
    ) as monitor:
        train(model, 1, monitor)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["step"], r["site"][-6:]) for r in lines] == [
        (0, "0.self"),
        (0, "1.self"),
        (2, "0.self"),
        (2, "1.self"),
        (4, "1.self"),
    ]
    assert monitor.records == []


def test_collapse_and_growth_are_reported_with_the_number():
    model, records = language(), []

    def sharpen():
        with torch.no_grad():
            model.decoder.blocks[0].self_attention.to_q.weight.mul_(200)

    with rg.inspection.AttentionMonitor(model, every=1, output=records.append) as monitor:
        train(model, 2, monitor, after=sharpen)
    assert [r["alerts"] for r in records[:2]] == [[], []]
    assert any("decoder.0.self, head" in a and "entropy collapsed to" in a for a in monitor.alerts)
    assert any("above 100" in alert for alert in monitor.alerts)
    assert all("step 1" in alert for alert in monitor.alerts)


def test_a_broken_number_is_reported_and_stays_readable_in_the_file(tmp_path):
    model, path = language(), tmp_path / "attention.jsonl"
    with torch.no_grad():
        model.decoder.blocks[0].self_attention.to_q.weight.fill_(math.nan)
    with rg.inspection.AttentionMonitor(model, every=1, output=path) as monitor:
        train(model, 1, monitor)
    assert any("not finite" in alert for alert in monitor.alerts)
    first = json.loads(path.read_text().splitlines()[0], parse_constant=pytest.fail)
    assert first["entropy"][0] == "nan"


def test_padding_that_sees_nothing_counts_for_nothing():
    model = models.Classifier(models.classifier_tiny(vocab=10, classes=2, dropout=0.0))
    tokens = torch.randint(10, (2, 6))
    with rg.inspection.AttentionMonitor(model, every=1) as monitor:
        model(tokens, torch.tensor([6, 0])).sum().backward()
        [first, _] = monitor.step()
    with rg.inspection.AttentionMonitor(model, every=1) as monitor:
        model(tokens[:1]).sum().backward()
        [alone, _] = monitor.step()
    assert first["entropy"] == pytest.approx(alone["entropy"], rel=1e-4)


def test_transformers_models_and_recurrent_attention_are_watched():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model, tokens = GPT2LMHeadModel(config).train(), torch.arange(6)[None]
    with rg.inspection.AttentionMonitor(model, every=1) as monitor:
        model(tokens, labels=tokens).loss.backward()
        records = monitor.step()
    assert [len(r["gradient"]) for r in records] == [2, 2]
    assert all(g > 0 for r in records for g in r["gradient"])
    recurrent = models.RecurrentTranslator(models.recurrent_tiny(vocab=9, attention="bahdanau"))
    with rg.inspection.AttentionMonitor(recurrent, every=1) as monitor:
        recurrent(tokens, tokens).sum().backward()
        [record] = monitor.step()
    assert 0 < record["entropy"][0] <= math.log(6)


@pytest.mark.usefixtures("users_view")
def test_errors_suggest_a_fix(tmp_path):
    with pytest.raises(ConfigError, match="every: needs 1 or more, got 0"):
        rg.inspection.AttentionMonitor(language(), every=0)
    with pytest.raises(FileError, match="needs an existing folder"):
        rg.inspection.AttentionMonitor(language(), output=tmp_path / "nowhere" / "a.jsonl")
