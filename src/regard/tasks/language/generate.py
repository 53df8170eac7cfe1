"""Text generation by the language model of a run."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from regard.data import Tokenizer
from regard.decode import (
    ContinuousBatch,
    GeneratedRow,
    Sampling,
    SuppressTokens,
    TokenScore,
    last_tokens,
    make_stepper,
    stream,
)
from regard.errors import ConfigError
from regard.models import LanguageModel, NgramModel
from regard.tasks.language.text_stream import (
    CONTEXT,
    ScoredToken,
    TextPiece,
    TextStream,
    scored_token,
    token_text,
)
from regard.tasks.language.verb import Generate, GenerateOptions
from regard.tasks.pipeline import Device, Pipeline, TrainedRun, model_on, require_verb

MAX_ROWS = 32  # texts that are generated together
MAX_SCORES = 1 << 24  # logits of a prompt that is scored: 64 MB of float32


def generate_run(
    run: TrainedRun,
    prompt: str = "",
    *,
    max_new_tokens: int = 200,
    sampling: Sampling | None = None,
    device: Device | None = None,
) -> Iterator[str]:
    """Continue a prompt, yielding text as it is decoded, until the end token.

    Args:
        run: a run of a language model.
        prompt: text to continue; empty starts a new document.
        max_new_tokens: the most tokens to generate.
        sampling: temperature, top-k, top-p, min-p and seed; None is greedy.
        device: where to decode, on a copy of the model; None is where the model is.

    >>> tokenizer = rg.data.ByteTokenizer()
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=tokenizer.vocab)).eval()
    >>> run = rg.Run(None, rg.tasks.recipe("stdlib"), model, tokenizer)
    >>> text = "".join(generate_run(run, "import ", max_new_tokens=5))
    """
    model, tokenizer = _model(run, device), run.tokenizer
    ids = _prompt_ids(run, prompt, max_new_tokens)

    def pieces() -> Iterator[str]:
        stepper = make_stepper(model)
        given = torch.tensor([ids], device=next(model.parameters()).device)
        with torch.no_grad():
            state = stepper.start(given)
        steps = stream(
            stepper, state, last_tokens(given), end=tokenizer.eos_id,
            max_new_tokens=max_new_tokens, sampling=sampling, constraints=[_text_only(tokenizer)],
        )  # fmt: skip
        text = TextStream(GeneratedRow(ids, max_new_tokens))
        for number, step in enumerate(steps, 1):
            is_last = number == max_new_tokens or bool(step.ended)
            piece = text.push(int(step.tokens), is_last, tokenizer)
            if not text.pending:
                yield piece.text

    return pieces()


class TextGenerator:
    """Continues several prompts together; each may begin and end at any step.

    >>> tokenizer = rg.data.ByteTokenizer()
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=tokenizer.vocab)).eval()
    >>> run = rg.Run(None, rg.tasks.recipe("stdlib"), model, tokenizer)
    >>> generator = TextGenerator(run)
    >>> streams = [generator.add(prompt, max_new_tokens=3) for prompt in ("import ", "def ")]
    >>> while len(generator):
    ...     pieces = generator.step()
    >>> streams[0].text == run.generate("import ", max_new_tokens=3)
    True
    """

    def __init__(self, run: TrainedRun, *, device: Device | None = None):
        self.run, self.stepper = run, make_stepper(_model(run, device))
        # several only where one prompt is so long that padding the others to it would not pay
        self.batches: list[ContinuousBatch] = []
        self.streams: dict[GeneratedRow, TextStream] = {}

    def __len__(self) -> int:
        return len(self.streams)

    def add(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 200,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        top_logprobs: int | None = None,
    ) -> TextStream:
        """Begin a text, with the options of `generate_run`.

        Args:
            prompt: text to continue.
            max_new_tokens: the most tokens to generate.
            sampling: None is greedy.
            stop: sequences that end the text; it does not contain them.
            top_logprobs: score each token, beside as many of the most likely; None scores none.
        """
        prompt_ids = _prompt_ids(self.run, prompt, max_new_tokens)
        row = GeneratedRow(prompt_ids, max_new_tokens, sampling, top_logprobs)
        if not any(batch.add(row) for batch in self.batches):
            tokenizer = self.run.tokenizer
            rules = [_text_only(tokenizer)]
            batch = ContinuousBatch(self.stepper, end=tokenizer.eos_id, constraints=rules)
            batch.add(row)
            self.batches.append(batch)
        self.streams[row] = TextStream(row, stop)
        return self.streams[row]

    def step(self) -> list[tuple[TextStream, TextPiece]]:
        """One more token of each text: the new text, often empty."""
        pieces = []
        for batch in self.batches:
            for row, token, ended in batch.step():
                stream = self.streams[row]
                pieces.append((stream, stream.push(token, ended, self.run.tokenizer)))
                if stream.ended:
                    self.remove(stream)
        self.batches = [batch for batch in self.batches if batch.rows]
        return pieces

    def score(self, prompt: str, count: int) -> list[ScoredToken]:
        """The tokens of a prompt with log probabilities; see `score_prompt`."""
        return score_prompt(self.run, prompt, count)

    def remove(self, stream: TextStream) -> None:
        """End a text early."""
        if self.streams.pop(stream.row, None) is not None:
            for batch in self.batches:
                batch.remove(stream.row)


def sampling_of(options: GenerateOptions) -> Sampling | None:
    """The sampling that options ask for; None, greedy, at temperature 0."""
    if options.temperature == 0:
        return None
    seed = time.monotonic_ns() % (1 << 31) if options.seed is None else options.seed
    return Sampling(
        temperature=options.temperature, top_k=options.top_k, top_p=options.top_p,
        min_p=options.min_p, seed=seed,
    )  # fmt: skip


class GenerationPipeline(Pipeline):
    """Continues prompts with the language model of a run.

    >>> tokenizer = rg.data.ByteTokenizer()
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=tokenizer.vocab)).eval()
    >>> run = rg.Run(None, rg.tasks.recipe("stdlib"), model, tokenizer)
    >>> pipeline = run.pipeline(max_new_tokens=3)
    >>> "".join(pipeline.stream("import ")) == pipeline(["import "])[0]
    True
    """

    declares = Generate
    batch_size = MAX_ROWS

    def __call__(self, inputs: Sequence[str]) -> list[str]:
        generator, options = self.generator(), self.stream_options()
        streams, waiting = list[TextStream](), deque(inputs)
        while waiting or len(generator):
            while waiting and len(generator) < MAX_ROWS:
                streams.append(generator.add(waiting.popleft(), **options))
            generator.step()
        return [stream.text for stream in streams]

    def stream(self, source: str) -> Iterator[str]:
        return generate_run(self.run, source, **self.stream_options())

    def stream_options(self) -> dict[str, Any]:
        count = self.options.max_new_tokens
        return {"max_new_tokens": count, "sampling": sampling_of(self.options)}

    def generator(self) -> TextGenerator:
        return TextGenerator(self.run)

    def as_json(self, output: str) -> dict[str, str]:
        return {"text": output}


def score_prompt(run: TrainedRun, prompt: str, count: int) -> list[ScoredToken]:
    """The tokens of a prompt, each scored by those before it.

    >>> tokenizer = rg.data.ByteTokenizer()
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=tokenizer.vocab)).eval()
    >>> run = rg.Run(None, rg.tasks.recipe("stdlib"), model, tokenizer)
    >>> [token.text for token in score_prompt(run, "abc", 0)]
    ['a', 'b', 'c']
    """
    model, tokenizer = _model(run, None), run.tokenizer
    ids = _prompt_ids(run, prompt, 0)
    most = MAX_SCORES // model.config.vocab
    if len(ids) > most:
        raise ConfigError(f"prompt: needs at most {most} tokens to be scored, got {len(ids)}")
    with torch.no_grad():
        logits = model(torch.tensor([ids], device=next(model.parameters()).device))[0]
    scores = [None] + [
        TokenScore.of(logits[n], token, count=count) for n, token in enumerate(ids[1:])
    ]
    edge, scored = len(run.recipe.data.document_edges(tokenizer)), list[ScoredToken]()
    pending, offset = list[int](), 0  # tokens of an incomplete character, and where its text begins
    for n in range(edge, len(ids)):
        start, pending = n - len(pending), [*pending, ids[n]]
        context = ids[max(0, start - CONTEXT) : start]
        text = token_text(tokenizer, context, pending)
        is_complete = not text.endswith("�") or n == len(ids) - 1
        text = text if is_complete else ""
        scored.append(scored_token(tokenizer, context, pending, text, offset, scores[n]))
        offset, pending = offset + len(text), [] if is_complete else pending
    return scored


def _model(run: TrainedRun, device: Device | None) -> LanguageModel | NgramModel:
    require_verb(run, "generate")
    model = model_on(run.model, device).eval()
    assert isinstance(model, LanguageModel | NgramModel)
    return model


def _text_only(tokenizer: Tokenizer) -> SuppressTokens:
    """Of the special tokens only the end token may be generated."""
    return SuppressTokens(i for i in tokenizer.special_tokens if i != tokenizer.eos_id)


def _prompt_ids(run: TrainedRun, prompt: str, max_new_tokens: int) -> list[int]:
    """Token ids of the prompt, after the edge of a document where the data has such edges."""
    ids = run.recipe.data.document_edges(run.tokenizer) + run.tokenizer.encode_input(prompt)
    if not ids:
        raise ConfigError("prompt: needs a text for this model to continue, got none")
    config = run.model.config
    positions = getattr(config, "positions", "none")  # an n-gram model has none
    if positions == "learned" and len(ids) + max_new_tokens > config.max_positions:
        raise ConfigError(
            f"max_new_tokens: needs at most {config.max_positions - len(ids)} after this prompt, "
            f"the end of the learned positions, got {max_new_tokens}; try a shorter prompt"
        )
    return ids
