"""Sound in, text out, while it is being said."""

from jaxtyping import Float
from torch import Tensor, nn

from regard.data import Tokenizer
from regard.decode.ctc import BestPath, PrefixBeam
from regard.decode.sound_stream import SoundStream
from regard.errors import ConfigError

LONGEST = 4  # tokens that one character may be spread over: the bytes of UTF-8


class Transcriber:
    """One stream of sound as text: each call takes more samples and gives the text that is new.

    With a `search` it is that beam's text, as far as all of it agrees, and `maybe` what the best of
    it says beyond; without, each label as soon as it is heard.

    >>> tokenizer = rg.data.Characters.train(["ET"])
    >>> model = rg.models.Recogniser(rg.models.recogniser_tiny(vocab=tokenizer.vocab)).eval()
    >>> transcriber, wave = Transcriber(model, tokenizer), torch.zeros(8000)
    >>> text = "".join(transcriber.hear(piece) for piece in wave.split(800)) + transcriber.finish()
    >>> sound = rg.data.Sound(wave, "", 8000)
    >>> text == rg.train.transcribe(model, tokenizer, [sound])[0]
    True
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        search: PrefixBeam | None = None,
        left: int | None = None,
    ):
        self.stream = SoundStream(model, left=left)
        if self.stream.config.vocab != tokenizer.vocab:
            raise ConfigError(
                f"tokenizer: needs the model's vocab={self.stream.config.vocab}, "
                f"got {tokenizer.vocab}"
            )
        self.tokenizer, self.search, self.path = tokenizer, search, BestPath()
        self.state, self.unsaid = self.stream.start(), list[int]()

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.stream.config.rate

    @property
    def maybe(self) -> str:
        """What may follow but is not decided yet."""
        more = [] if self.search is None else self.search.rest()
        return self.tokenizer.decode([*self.unsaid, *more])

    def hear(self, samples: Float[Tensor, " sample"]) -> str:
        """The text that these samples add."""
        log_probs, self.state = self.stream.hear(samples, self.state)
        return self._spell(self._labels(log_probs))

    def finish(self) -> str:
        """The text that the end adds; then it is ready for another stream."""
        labels = self._labels(self.stream.finish(self.state))
        if self.search is not None:
            labels += self.search.rest()
            self.search.forget()
        text = self._spell(labels) + self.tokenizer.decode(self.unsaid)
        self.state, self.path, self.unsaid = self.stream.start(), BestPath(), []
        return text

    def _labels(self, log_probs: Tensor) -> list[int]:
        if self.search is None:
            return self.path(log_probs)
        self.search(log_probs)
        return self.search.settled()

    def _spell(self, labels: list[int]) -> str:
        """The text of all labels but those of a character that is not whole yet."""
        waiting = [*self.unsaid, *labels]
        for back in range(min(LONGEST, len(waiting)) + 1):
            text = self.tokenizer.decode(waiting[: len(waiting) - back])
            if not text.endswith("�"):
                break
        else:  # it never will be
            text, back = self.tokenizer.decode(waiting), 0
        self.unsaid = waiting[len(waiting) - back :]
        return text
