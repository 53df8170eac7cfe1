"""Peers for `own_data.py`, each with its library's or tutorial's default settings.

python benchmarks/own_data_peers.py labels.logistic FOLDER    # prints the score on the test split
"""

import csv
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import nn

MINUTES = 10  # limit of a training on two cores: 20 CPU minutes, then it stops where it is
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# ---- labelled texts


def labels_logistic(folder):
    """scikit-learn: TF-IDF and logistic regression; max_iter as its warning proposes."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=1000))
    model.fit(*zip(*_rows(folder, "train"), strict=True))
    texts, labels = zip(*_rows(folder, "test"), strict=True)
    return {"accuracy": float(np.mean(model.predict(texts) == np.array(labels)))}


def labels_bert(folder):
    """transformers' Trainer: a BERT of 2 layers of 128 from scratch, byte pairs of the data."""
    from transformers import BertForSequenceClassification

    rows = {split: _rows(folder, split) for split in ("train", "test")}
    names = sorted({label for _, label in rows["train"]})
    tokenizer = _byte_pairs([text for text, _ in rows["train"]])
    data = {
        split: [
            {"input_ids": tokenizer.encode(x).ids[:256], "labels": names.index(y)} for x, y in r
        ]
        for split, r in rows.items()
    }
    model = BertForSequenceClassification(_bert(tokenizer, names))
    logits = _trainer(model, data["train"], 10).predict(data["test"]).predictions
    return {"accuracy": float(np.mean(logits.argmax(-1) == [x["labels"] for x in data["test"]]))}


def _rows(folder, split):
    with open(folder / f"{split}.csv", newline="", encoding="utf-8") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


# ---- tagged words


def tags_crf(folder):
    """sklearn-crfsuite with the features and settings of its tutorial."""
    import sklearn_crfsuite

    train, test = _sentences(folder, "train"), _sentences(folder, "test")
    model = sklearn_crfsuite.CRF(algorithm="lbfgs", c1=0.1, c2=0.1, max_iterations=100)
    model.fit([_features(s) for s in train], [[tag for _, tag in s] for s in train])
    return _tag_scores(model.predict([_features(s) for s in test]), test)


def _features(sentence):
    rows = []
    for n in range(len(sentence)):
        row = {"bias": 1.0, "BOS": n == 0, "EOS": n == len(sentence) - 1}
        for shift in (-1, 0, 1):
            if 0 <= n + shift < len(sentence):
                word = sentence[n + shift][0]
                row |= {f"{shift}:lower": word.lower(), f"{shift}:istitle": word.istitle()}
                row |= {f"{shift}:isupper": word.isupper()}
                if not shift:
                    row |= {"[-3:]": word[-3:], "[-2:]": word[-2:], "isdigit": word.isdigit()}
        rows.append(row)
    return rows


def tags_bert(folder):
    """transformers' Trainer: a BERT of 2 layers of 128 from scratch; first pieces have the tags."""
    from transformers import BertForTokenClassification

    rows = {split: _sentences(folder, split) for split in ("train", "test")}
    names = sorted({tag for s in rows["train"] for _, tag in s})
    tokenizer = _byte_pairs([" ".join(word for word, _ in s) for s in rows["train"]])

    def encode(sentence):
        ids, tags = [], []
        for word, tag in sentence:
            pieces = tokenizer.encode(f" {word}").ids
            ids += pieces
            tags += [names.index(tag) if tag in names else 0, *[-100] * (len(pieces) - 1)]
        return {"input_ids": ids[:256], "labels": tags[:256]}

    model = BertForTokenClassification(_bert(tokenizer, names))
    test = [encode(s) for s in rows["test"]]
    logits = _trainer(model, [encode(s) for s in rows["train"]], 10).predict(test).predictions
    best = [
        [names[i] for i, tag in zip(row, x["labels"], strict=False) if tag >= 0]
        for row, x in zip(logits.argmax(-1), test, strict=True)
    ]
    return _tag_scores(best, rows["test"])


def _sentences(folder, split):
    blocks = (folder / f"{split}.conll").read_text(encoding="utf-8").split("\n\n")
    return [[tuple(line.split("\t")) for line in b.splitlines()] for b in blocks if b.strip()]


def _tag_scores(answers, sentences):
    from regard.tasks.tagging import TaggedText, score_tags

    references = [TaggedText(s) for s in sentences]
    words = [[word for word, _ in s] for s in sentences]
    return score_tags(
        [TaggedText(zip(w, a, strict=True)) for w, a in zip(words, answers, strict=True)],
        references,
    )


def _byte_pairs(texts):
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=4000, special_tokens=["<pad>"])
    return tokenizer


def _bert(tokenizer, names):
    from transformers import BertConfig

    return BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=128, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=512, num_labels=len(names), pad_token_id=0,
    )  # fmt: skip


def _trainer(model, train, epochs):
    """The defaults of Trainer but for 10 epochs and lr 1e-3: 3 of 5e-5 are for fine-tuning."""
    from transformers import Trainer, TrainingArguments

    def collate(rows):
        longest = max(len(row["input_ids"]) for row in rows)

        def pad(values, value):
            return torch.tensor([[*x, *[value] * (longest - len(x))] for x in values])

        ids = [row["input_ids"] for row in rows]
        labels = [row["labels"] for row in rows]
        return {
            "input_ids": pad(ids, 0), "attention_mask": pad([[1] * len(x) for x in ids], 0),
            "labels": pad(labels, -100) if isinstance(labels[0], list) else torch.tensor(labels),
        }  # fmt: skip

    settings = TrainingArguments(
        output_dir="/tmp/own-data-trainer", num_train_epochs=epochs, learning_rate=1e-3,
        per_device_train_batch_size=32, save_strategy="no", report_to=[], logging_steps=10**9,
        disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=model, args=settings, train_dataset=train, data_collator=collate)
    trainer.train()
    return trainer


# ---- images


def images_boosting(folder):
    """scikit-learn: HistGradientBoostingClassifier on pixels."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    (x, y), (test, labels) = _images(folder)
    model = HistGradientBoostingClassifier().fit(x.reshape(len(x), -1), y)
    return {"accuracy": float(np.mean(model.predict(test.reshape(len(test), -1)) == labels))}


def images_cnn(folder):
    """The network and settings of pytorch/examples/mnist: Adadelta, lr 1, γ 0.7, batches of 64."""
    (x, y), (test, labels) = (map(torch.from_numpy, part) for part in _images(folder))
    side = (x.shape[-1] - 4) // 2
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * side * side, 128), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(128, int(y.max()) + 1),
    )  # fmt: skip
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    accuracy, epochs = _fit(model, _grey(x), y, _grey(test), labels, optimizer, schedule, 14)
    return {"accuracy": accuracy, "epochs": epochs}


def _grey(images):
    return (images[:, None].float() / 255 - 0.1307) / 0.3081


def _images(folder):
    from regard.data.image.image_file import find_idx, read_idx

    parts = []
    for split in ("train", "t10k"):
        images = np.asarray(read_idx(find_idx(folder, f"{split}-images-idx3")))
        labels = np.asarray(read_idx(find_idx(folder, f"{split}-labels-idx1"))).astype(np.int64)
        parts.append((images, labels))
    return parts


def _fit(model, x, y, test, labels, optimizer, schedule, epochs, batch=64):
    """Train a classifier for so many epochs, or as many as begin within the time limit."""
    model.to(DEVICE)
    start = time.process_time()
    for epoch in range(epochs):
        if time.process_time() - start > 120 * MINUTES:
            epochs = epoch
            break
        model.train()
        for rows in torch.randperm(len(x)).split(batch):
            loss = nn.functional.cross_entropy(model(x[rows].to(DEVICE)), y[rows].to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        best = torch.cat([model(part.to(DEVICE)).argmax(-1).cpu() for part in test.split(500)])
    return float((best == labels).float().mean()), epochs


# ---- spoken words, as classes


def speech_logistic(folder):
    """scikit-learn: scaled log-mel spectrograms of 32 × 32 and logistic regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    (x, y), (test, labels) = (_spectrograms(folder, split) for split in ("train", "test"))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(x.flatten(1).numpy(), y)
    return {"exact": model.score(test.flatten(1).numpy(), labels)}


def speech_cnn(folder):
    """The network and settings of TensorFlow's tutorial "Simple audio recognition", in torch."""
    (x, y), (test, labels) = (_spectrograms(folder, split) for split in ("train", "test"))
    mean, std = x.mean(), x.std()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(),
        nn.Dropout(0.5), nn.Linear(128, int(y.max()) + 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    x, test = ((part[:, None] - mean) / std for part in (x, test))
    accuracy, _ = _fit(model, x, y, test, labels, optimizer, constant, 10)
    return {"exact": accuracy}


def _spectrograms(folder, split):
    """Magnitudes of an STFT of 255 samples, hop 128, of one second, resized to 32 × 32."""
    import soundfile

    lines = (folder / f"{split}.tsv").read_text().splitlines()
    files, words = zip(*(line.split("\t") for line in lines), strict=True)
    names = sorted(set(words))
    pictures = []
    for file in files:
        wave, rate = soundfile.read(folder / file, dtype="float32")
        wave = nn.functional.pad(torch.from_numpy(wave)[:rate], (0, max(0, rate - len(wave))))
        spectrum = torch.stft(wave, 255, 128, return_complex=True, window=torch.hann_window(255))
        pictures.append(
            nn.functional.interpolate(spectrum.abs()[None, None], (32, 32), mode="bilinear")[0, 0]
        )
    return torch.stack(pictures), torch.tensor([names.index(word) for word in words])


# ---- language models


def text_nanogpt(folder):
    """transformers' GPT-2 with the sizes and settings of nanoGPT's README for a CPU."""
    from transformers import GPT2Config, GPT2LMHeadModel

    text = (folder / "input.txt").read_text(encoding="utf-8")
    number = {c: n for n, c in enumerate(sorted(set(text)))}
    row = torch.tensor([number[c] for c in text])
    train, valid = row[: int(0.9 * len(row))], row[int(0.9 * len(row)) :]
    config = GPT2Config(
        vocab_size=len(number), n_positions=64, n_embd=128, n_layer=4, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(2000):
        cosine = 0.5 * (1 + np.cos(np.pi * max(0, step - 100) / 1900))
        lr = 1e-3 * (step + 1) / 100 if step < 100 else 1e-4 + 9e-4 * cosine
        optimizer.param_groups[0]["lr"] = lr
        starts = torch.randint(len(train) - 65, (12,))
        batch = torch.stack([train[n : n + 65] for n in starts]).to(DEVICE)
        logits = model(batch[:, :-1]).logits
        nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    windows = valid[: len(valid) // 65 * 65].reshape(-1, 65)
    model.eval()
    with torch.no_grad():
        losses = [
            nn.functional.cross_entropy(model(x[:, :-1]).logits.flatten(0, 1), x[:, 1:].flatten())
            for x in windows.to(DEVICE).split(256)
        ]
    nats = float(torch.stack(losses).mean())
    return {"nats_per_char": nats, "bits_per_byte": nats / np.log(2)}


# ---- translation


def pairs_tutorial(folder):
    """torch.nn.Transformer with the settings of bentrevett/pytorch-seq2seq, tutorial 6.

    Words of two or more occurrences, lower case; 3 + 3 layers of 256, batches of 128, Adam at
    5e-4, at most 10 epochs. BLEU is of lower-case text, 13a.
    """
    import sacrebleu
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    split = Tokenizer13a()
    first, second = sorted(file.suffix for file in folder.glob("train.*"))

    def read(name):
        sides = [(folder / f"{name}{x}").read_text("utf-8").lower() for x in (first, second)]
        return [[split(line).split() for line in side.splitlines()] for side in sides]

    train, test = read("train"), read("test")
    vocabularies = [["<pad>", "<unk>", "<s>", "</s>"] for _ in train]
    for words, side in zip(vocabularies, train, strict=True):
        words += [w for w, n in Counter(w for line in side for w in line).items() if n > 1]
    numbers = [{w: n for n, w in enumerate(words)} for words in vocabularies]

    def encode(lines, side):
        rows = [[2, *(numbers[side].get(w, 1) for w in line), 3] for line in lines]
        return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True).to(DEVICE)

    model = _Translator(*(len(words) for words in vocabularies)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    start, done = time.process_time(), 0
    by_length = sorted(range(len(train[0])), key=lambda n: len(train[0][n]))
    batches = [by_length[n : n + 128] for n in range(0, len(by_length), 128)]
    for _ in range(10):
        model.train()
        for n in torch.randperm(len(batches)).tolist():
            source, target = (
                encode([side[i] for i in batches[n]], k) for k, side in enumerate(train)
            )
            logits = model(source, target[:, :-1])
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done += 1
            if time.process_time() - start > 120 * MINUTES:
                break
        else:
            continue
        break
    model.eval()
    answers = []
    with torch.no_grad():
        for n in range(0, len(test[0]), 100):
            source = encode(test[0][n : n + 100], 0)
            target = torch.full((len(source), 1), 2, device=DEVICE)
            for _ in range(50):
                best = model(source, target)[:, -1].argmax(-1)
                target = torch.cat([target, best[:, None]], 1)
            for row in target[:, 1:].tolist():
                end = row.index(3) if 3 in row else len(row)
                answers.append(" ".join(vocabularies[1][i] for i in row[:end]))
    references = [" ".join(line) for line in test[1]]
    bleu = sacrebleu.corpus_bleu(answers, [references], tokenize="none", force=True).score
    return {"bleu_lower": bleu, "epochs": done / len(batches)}


class _Translator(nn.Module):
    def __init__(self, source, target, dim=256):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, dim) for n in (source, target))
        self.places = nn.ModuleList(nn.Embedding(128, dim) for _ in range(2))
        self.body = nn.Transformer(dim, 8, 3, 3, 512, 0.1, batch_first=True)
        self.head, self.drop = nn.Linear(dim, target), nn.Dropout(0.1)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def embed(self, tokens, side):
        places = self.places[side](torch.arange(tokens.shape[1], device=tokens.device))
        return self.drop(self.tables[side](tokens) * 16.0 + places)

    def forward(self, source, target):
        padded = source == 0
        future = self.body.generate_square_subsequent_mask(target.shape[1], source.device)
        x = self.body(
            self.embed(source, 0), self.embed(target, 1), tgt_mask=future, tgt_is_causal=True,
            src_key_padding_mask=padded, memory_key_padding_mask=padded,
        )  # fmt: skip
        return self.head(x)


if __name__ == "__main__":
    torch.manual_seed(0)
    function = globals()[sys.argv[1].replace(".", "_").replace("-", "_")]
    print({name: round(x, 4) for name, x in function(Path(sys.argv[2])).items()})
