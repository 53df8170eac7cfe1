"""Every model with small inputs: the tests of saved files and of costs loop over `CASES`."""

import torch

from regard import models

VOCAB, M, N, BATCH = 11, 9, 5, 2


def tokens(n=M):
    return torch.randint(VOCAB, (BATCH, n))


def pair(config):
    kind = (
        models.Translator
        if isinstance(config, models.TranslatorConfig)
        else models.RecurrentTranslator
    )
    return kind(config), (tokens(), tokens(N))


CASES = {
    "translator": lambda: pair(models.translator_tiny(vocab=VOCAB)),
    "translator, untied, odd widths": lambda: pair(
        models.translator_tiny(
            vocab=VOCAB,
            head_dim=3,
            kv_heads=2,
            ffn_dim=20,
            gated=True,
            tied=False,
            shared_embedding=False,
        )
    ),
    "translator, buckets": lambda: pair(
        models.translator_tiny(vocab=VOCAB, relative_bias="buckets")
    ),
    "translator, keys": lambda: pair(
        models.translator_tiny(vocab=VOCAB, relative_bias="keys", max_distance=4)
    ),
    "language": lambda: (models.LanguageModel(models.language_tiny(vocab=VOCAB)), (tokens(),)),
    "language, grouped, gated": lambda: (
        models.LanguageModel(models.language_small(vocab=VOCAB)),
        (tokens(),),
    ),
    "language, linear attention": lambda: (
        models.LanguageModel(models.language_delta(VOCAB, layers=2, dim=16, heads=2)),
        (tokens(),),
    ),
    "n-grams": lambda: (
        models.fit_ngrams([torch.arange(99) ** 2 % VOCAB], vocab=VOCAB, order=3),
        (tokens(),),
    ),
    "classifier": lambda: (
        models.Classifier(models.classifier_tiny(vocab=VOCAB, classes=3, pooler=True)),
        (tokens(),),
    ),
    "classifier, n-grams of words": lambda: (
        models.Classifier(
            models.classifier_tiny(vocab=VOCAB, classes=3, pooling="none", ngrams=64)
        ),
        (tokens(),),
    ),
    "vision": lambda: (
        models.VisionTransformer(models.vision_tiny(classes=3, image_size=12, head="mlp")),
        (torch.zeros(BATCH, 1, 12, 12),),
    ),
    "recogniser": lambda: (
        models.Recogniser(models.recogniser_tiny(vocab=VOCAB)),
        (torch.zeros(BATCH, M, 40),),
    ),
    "recogniser over bands": lambda: (
        models.Recogniser(models.recogniser_tiny(vocab=VOCAB, filters=3)),
        (torch.zeros(BATCH, M, 40),),
    ),
    "word recogniser": lambda: (
        models.WordRecogniser(models.WordRecogniserConfig(vocab=VOCAB, n_mels=8, width=8)),
        (torch.randn(BATCH, M, 8),),
    ),
    "speech encoder": lambda: (
        models.SpeechEncoder(models.SpeechEncoderConfig(layers=2, dim=8, heads=2)),
        (torch.zeros(BATCH, M, 80),),
    ),
    "mlp": lambda: (models.MLP(models.MLPConfig(inputs=16, classes=3)), (torch.zeros(BATCH, 16),)),
    "resnet": lambda: (
        models.ResNet(models.ResNetConfig(classes=3, width=16)),
        (torch.zeros(BATCH, 1, 9, 9),),
    ),
}
for kind in ("rnn", "gru", "lstm"):
    for attention in ("none", "bahdanau", "luong", "hybrid"):
        CASES[f"{kind}, {attention}"] = lambda kind=kind, attention=attention: pair(
            models.recurrent_tiny(vocab=VOCAB, cell=kind, attention=attention, dim=6, layers=2)
        )
