from zlib import crc32

import pytest
import torch

from regard.data import BPETokenizer, CharTokenizer
from regard.data.text.words import hash_ngrams, word_features
from regard.models.ngram_logits import NgramLogits
from regard.tasks.ngram_fit import spellings

TEXTS = ["The cat, sat on U.S. ground", "mat", "Straße über 3 Тест-Äpfel 漢字 _x"]


def make(tokenizer, words=False, buckets=1 << 16):
    torch.manual_seed(0)
    layer = NgramLogits(tokenizer.vocab, buckets, 3, words=words)
    for row, name in zip(layer.characters, spellings(tokenizer), strict=True):
        row[: len(name)] = torch.tensor([ord(c) for c in name])
    layer.weight.data.normal_()
    layer.scale.data.uniform_(1, 2)
    return layer


def batch(rows):
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True), lengths


@pytest.fixture(scope="module")
def tokenizers():
    return BPETokenizer.train(TEXTS * 9, vocab_size=320), CharTokenizer.train(TEXTS)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_read_from_any_tokens(tokenizers, text):
    for tokenizer in tokenizers:
        tokens = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text)]])
        if "漢" not in text or tokenizer is tokenizers[1]:  # whose bytes are tokens of their own
            assert make(tokenizer).read(tokens) == [[text]]


def test_values_are_tf_idf_of_norm_1_per_kind(tokenizers):
    layer = make(tokenizers[0])
    columns, starts, values = layer.features([["the cat"], ["mat"]])
    assert starts.tolist() == [0, sum(map(len, hash_ngrams("the cat", 1 << 15)))]
    assert values[: starts[1]].square().sum().item() == pytest.approx(2)
    words = len(hash_ngrams("the cat", 1 << 15)[0])
    expected = layer.scale[columns[:words]]
    torch.testing.assert_close(values[:words], expected / expected.norm())


@pytest.mark.parametrize("words", [False, True])
def test_padding_and_the_rest_of_the_batch_change_nothing(tokenizers, words):
    layer = make(tokenizers[0], words)
    rows = [tokenizers[0].encode(f" {text}") for text in TEXTS]
    together = layer(*batch(rows))
    for n, row in enumerate(rows):
        alone = layer(torch.tensor([row]))[0]
        torch.testing.assert_close(together[n][: len(row)] if words else together[n], alone)


def test_the_logits_of_a_word_are_at_its_first_token(tokenizers):
    layer, tokenizer = make(tokenizers[0], words=True), tokenizers[0]
    words = [tokenizer.encode(f" {word}") for word in ("Unground", "sat")]
    logits = layer(torch.tensor([sum(words, [])]))[0]
    used = logits.abs().sum(-1) > 0
    assert used.nonzero()[:, 0].tolist() == [0, len(words[0])]


def test_words_are_those_of_the_sentence_and_have_their_features(tokenizers):
    layer, tokenizer = make(tokenizers[0], words=True), tokenizers[0]
    sentence = ["Grounding", "U.S.", "Äpfel"]
    tokens = torch.tensor([[t for w in sentence for t in tokenizer.encode(f" {w}")]])
    assert layer.read(tokens) == [sentence]
    logits = layer(tokens)[0][layer._word_starts(tokens, None)[0]]
    for row, names in zip(logits, word_features(sentence), strict=True):
        buckets = [crc32(name.encode()) % (1 << 16) for name in names]
        torch.testing.assert_close(row, layer.weight[buckets].sum(0))


def test_an_empty_sequence_has_no_logits(tokenizers):
    assert make(tokenizers[0], words=True)(torch.zeros(2, 0, dtype=torch.long)).shape[:2] == (2, 0)
    text = make(tokenizers[0])(torch.tensor([[tokenizers[0].bos_id]]))
    assert text.tolist() == [[0, 0, 0]]
