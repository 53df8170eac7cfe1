"""Text generation by the language model of a run."""

from collections.abc import Iterator

import torch

from regard.data import Tokenizer
from regard.decode import Sampling, SuppressTokens, last_tokens, make_stepper, stream
from regard.errors import ConfigError
from regard.models import LanguageModel
from regard.runs.contents import Device, RunContents, require_verb
from regard.runs.text_model import model_on

CONTEXT = 8  # tokens that new ones are decoded with


def generate_run(
    run: RunContents,
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
    require_verb(run, "generate")
    ids = _prompt_ids(run, prompt)
    model = model_on(run.model, device).eval()
    assert isinstance(model, LanguageModel)
    config = model.config
    if config.positions == "learned" and len(ids) + max_new_tokens > config.max_positions:
        raise ConfigError(
            f"max_new_tokens: needs at most {config.max_positions - len(ids)} after this prompt, "
            f"the end of the learned positions, got {max_new_tokens}; try a shorter prompt"
        )
    return _stream(model, run.tokenizer, ids, max_new_tokens, sampling)


def _stream(
    model: LanguageModel,
    tokenizer: Tokenizer,
    ids: list[int],
    max_new_tokens: int,
    sampling: Sampling | None,
) -> Iterator[str]:
    stepper = make_stepper(model)
    prompt = torch.tensor([ids], device=next(model.parameters()).device)
    with torch.no_grad():
        state = stepper.start(prompt)
    # of the special tokens only the end token may be generated
    text_only = SuppressTokens(i for i in tokenizer.special_tokens if i != tokenizer.eos_id)
    steps = stream(
        stepper, state, last_tokens(prompt), end=tokenizer.eos_id, max_new_tokens=max_new_tokens,
        sampling=sampling, constraints=[text_only],
    )  # fmt: skip
    # decoded after tokens before them: a token may begin with a space that the first one loses
    context, pending = ids[-CONTEXT:], list[int]()
    for step in steps:
        pending += step.tokens.tolist()
        text = _continuation(tokenizer, context, pending)
        if not text.endswith("�"):  # a character may be spread over several byte tokens
            context, pending = (context + pending)[-CONTEXT:], []
            yield text
    if pending:
        yield _continuation(tokenizer, context, pending)


def _continuation(tokenizer: Tokenizer, context: list[int], ids: list[int]) -> str:
    return tokenizer.decode(context + ids)[len(tokenizer.decode(context)) :]


def _prompt_ids(run: RunContents, prompt: str) -> list[int]:
    """Token ids of the prompt, after the edge of a document where the data has such edges."""
    ids = run.data.document_edges(run.tokenizer) + run.tokenizer.encode_input(prompt)
    if not ids:
        raise ConfigError("prompt: needs a text for this model to continue, got none")
    return ids
