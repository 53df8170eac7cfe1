"""A trained language model at work: it goes on with a text, piece by piece."""

from collections.abc import Iterator

import torch

from regard.data import Tokenizer
from regard.decode import Sampling, SuppressTokens, last_tokens, make_stepper, stream
from regard.errors import ConfigError
from regard.models import LanguageModel
from regard.runs.run import Run
from regard.tasks.language.text import LanguageData


def generate_run(
    run: Run, prompt: str = "", *, max_new_tokens: int = 200, sampling: Sampling | None = None
) -> Iterator[str]:
    """What a language model goes on with after a prompt, as it comes; greedy if `how` is None.

    Without a prompt it begins a new text. It ends at the end of a text, or after `limit` tokens.
    This is `rg.generate`.

    >>> words = rg.data.ByteTokenizer()
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=words.vocab)).eval()
    >>> run = Run(None, rg.tasks.recipe("stdlib"), model, words, [], {})
    >>> text = "".join(generate_run(run, "import ", max_new_tokens=5))
    """
    if not isinstance(run.model, LanguageModel):
        kind = type(run.model).__name__
        raise ConfigError(f"run: needs a language model, got a {kind}; try translate")
    ids = _begin(run, prompt)
    model, tokenizer = run.model.eval(), run.tokenizer
    if (
        model.config.positions == "learned"
        and len(ids) + max_new_tokens > model.config.max_positions
    ):
        raise ConfigError(
            f"limit: needs at most {model.config.max_positions - len(ids)} after this prompt, the end "
            f"of the learned positions, got {max_new_tokens}; try fewer, or a shorter prompt"
        )
    return _pieces(model, tokenizer, ids, max_new_tokens, sampling)


def _pieces(
    model: LanguageModel, tokenizer: Tokenizer, ids: list[int], limit: int, how: Sampling | None
) -> Iterator[str]:
    device, stepper = next(model.parameters()).device, make_stepper(model)
    read = torch.tensor([ids], device=device)
    with torch.no_grad():
        state = stepper.start(read)
    # a text holds no special token; its end is the only one that means something
    text_only = SuppressTokens(i for i in range(tokenizer.first_text_id) if i != tokenizer.eos_id)
    steps = stream(
        stepper, state, last_tokens(read), end=tokenizer.eos_id, max_new_tokens=limit, sampling=how,
        constraints=[text_only],
    )  # fmt: skip
    waiting: list[int] = []
    for step in steps:
        waiting += step.tokens.tolist()
        text = tokenizer.decode(waiting)
        if not text.endswith("�"):  # half a letter waits for its other half
            waiting = []
            yield text
    if waiting:
        yield tokenizer.decode(waiting)


def _begin(run: Run, prompt: str) -> list[int]:
    """What the model reads first: texts it was trained on stand between two ends, or have none."""
    assert isinstance(run.recipe.data, LanguageData)
    ids = run.recipe.data.document_edges(run.tokenizer) + run.tokenizer.encode_input(prompt)
    if not ids:
        raise ConfigError("prompt: needs a text for this model to go on with, got none")
    return ids
