"""`generate`, as it is declared."""

from regard.tasks.verb import Prompt, TaskOptions, Verb, option


class GenerateOptions(TaskOptions):
    """Continue a text with a language model, printed as it is generated."""

    max_new_tokens: int = option(
        default=200, ge=1, served=4096, help="Maximum number of new tokens."
    )
    temperature: float = option(
        default=0.0, ge=0, served=10, command=0.8, help="Sampling temperature; 0 is greedy."
    )
    top_k: int | None = option(default=None, ge=1, help="Sample from the k most probable tokens.")
    top_p: float | None = option(
        default=None, gt=0, le=1,
        help="Nucleus sampling: the fewest tokens with this total probability.",
    )  # fmt: skip
    min_p: float | None = option(
        default=None, gt=0, le=1, help="Drop tokens below this fraction of the highest probability."
    )
    seed: int | None = option(
        default=None, ge=0, served=(1 << 62) - 1, command=0, help="Random seed."
    )


class Generate(Verb):
    """Continuation of texts."""

    verb, hub_tag, can_stream = "generate", "text-generation", True
    reads, Options = Prompt(), GenerateOptions
