"""`/v1/completions` as OpenAI documents it: what is not implemented is refused by name."""

import re
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from regard.errors import ConfigError, RegardError
from regard.runs import Run
from regard.tasks import ScoredToken, TextPiece
from regard.tasks.language.generate import sampling_of
from regard.tasks.language.verb import GenerateOptions
from regard.web.server import COMPLETIONS, Server
from regard.web.streams import begun, event, merged, while_connected
from regard.web.task_routes import MAX_CHARS, MAX_TEXTS, ApiRequest, check_lengths

MAX_NEW_TOKENS = 4096
Seed = Annotated[int | None, Field(ge=0, lt=1 << 62)]
Text = Annotated[str, Field(max_length=MAX_CHARS)]
StopText = Annotated[str, Field(min_length=1, max_length=200)]


class StreamOptions(BaseModel):
    """What a stream holds besides the text."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class CompletionRequest(ApiRequest):
    """Body of POST /v1/completions; the fields at the end are taken at values without effect."""

    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)] = ""
    max_tokens: int = Field(16, ge=0, le=MAX_NEW_TOKENS)
    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: Seed = None
    n: int = Field(1, ge=1, le=MAX_TEXTS)
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=1000)  # whom a provider may have to block
    best_of: int | None = Field(None, ge=1, le=1)
    frequency_penalty: float | None = Field(None, ge=0, le=0)
    presence_penalty: float | None = Field(None, ge=0, le=0)
    logit_bias: dict[str, float] | None = Field(None, max_length=0)
    suffix: str | None = Field(None, max_length=0)


def add_completions(app: FastAPI, server: Server) -> None:
    """Add the paths that OpenAI's clients use."""

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        names = [name for name, paths in server.paths.items() if COMPLETIONS in paths]
        data = [{"id": name, "object": "model", "owned_by": "regard"} for name in names]
        return {"object": "list", "data": data}

    @app.post(COMPLETIONS)
    async def completions(request: Request, body: CompletionRequest) -> Any:
        name, run = await server.open(COMPLETIONS, body.model)
        head = {"id": f"cmpl-{time.time_ns():x}", "object": "text_completion"}
        head |= {"created": int(time.time()), "model": name}
        answer = _Completion(server, run, body, head)
        if body.stream:
            events = await begun(answer.events())
            return StreamingResponse(events, media_type="text/event-stream")
        return await while_connected(request, answer.whole())


class _Completion:
    """The choices of a request: `n` per prompt, those of a prompt in a row."""

    def __init__(self, server: Server, run: Run, body: CompletionRequest, head: dict[str, Any]):
        self.server, self.run, self.body, self.head = server, run, body, head
        self.prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        check_lengths("prompt", self.prompts)
        if body.n * len(self.prompts) > MAX_TEXTS:
            most = MAX_TEXTS // len(self.prompts)
            raise ConfigError(f"n: needs at most {most} for this many prompts, got {body.n}")
        if body.stream_options and not body.stream:
            raise ConfigError("stream_options: needs stream, got none; try stream true")
        self.counts = [0] * (body.n * len(self.prompts))

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Parts of choices, as they are there."""
        body = self.body
        if body.echo or not body.max_tokens:
            for number, prompt in enumerate(self.prompts):
                tokens = tuple(await self._score(prompt)) if body.echo else ()
                reason = None if body.max_tokens else "length"
                piece = TextPiece(prompt if body.echo else "", tokens, finish_reason=reason)
                for n in range(body.n):
                    yield self._choice(number * body.n + n, piece, 0)
        if body.max_tokens:
            async for index, piece in merged([self._generate(n) for n in range(len(self.counts))]):
                self.counts[index] = piece.generated
                start = len(self.prompts[index // body.n]) if body.echo else 0
                yield self._choice(index, piece, start)

    async def _score(self, prompt: str) -> list[ScoredToken]:
        """The tokens of a prompt that is echoed with log probabilities."""
        if (count := self.body.logprobs) is None:
            return []
        generator = self.server.generator(self.run)
        score = lambda prompts: [generator.score(prompts[0], count)]  # noqa: E731
        (tokens,) = await self.server.compute(object(), [prompt], score)
        return tokens

    def _generate(self, index: int) -> AsyncIterator[TextPiece]:
        body = self.body
        # the same choice of another prompt has the same seed: each text is as it is alone
        seed = None if body.seed is None else body.seed + index % body.n
        return self.server.generate(
            self.run,
            self.prompts[index // body.n],
            max_new_tokens=body.max_tokens,
            sampling=sampling_of(
                GenerateOptions(temperature=body.temperature, top_p=body.top_p, seed=seed)
            ),
            stop=[body.stop] if isinstance(body.stop, str) else body.stop or (),
            top_logprobs=body.logprobs,
        )

    def _choice(self, index: int, piece: TextPiece, start: int) -> dict[str, Any]:
        tokens = piece.tokens
        logprobs = {
            "tokens": [x.text for x in tokens],
            "token_logprobs": [x.logprob for x in tokens],
            "top_logprobs": [
                None if x.logprob is None else {**x.top, x.text: x.logprob} for x in tokens
            ],
            "text_offset": [start + x.offset for x in tokens],
        }
        return {
            "text": piece.text,
            "index": index,
            "logprobs": None if self.body.logprobs is None else logprobs,
            "finish_reason": piece.finish_reason,
        }

    async def usage(self) -> dict[str, int]:
        """Tokens that were read, once per prompt, and generated."""
        tokenizer = self.run.tokenizer
        count = lambda prompts: [len(tokenizer.encode_input(x)) for x in prompts]  # noqa: E731
        read = sum(await self.server.compute(object(), self.prompts, count))
        written = sum(self.counts)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices: dict[int, dict[str, Any]] = {}
        async for part in self.chunks():
            choice = choices.setdefault(part["index"], part)
            if choice is not part:
                choice["text"] += part["text"]
                choice["finish_reason"] = part["finish_reason"]
                for name, values in (part["logprobs"] or {}).items():
                    choice["logprobs"][name] += values
        rows = [choices[n] for n in sorted(choices)]
        return self.head | {"choices": rows, "usage": await self.usage()}

    async def events(self) -> AsyncIterator[str]:
        """The answer as server-sent events; an error such as a shutdown may be the last one."""
        options = self.body.stream_options
        more = {"usage": None} if options and options.include_usage else {}
        sent = False
        try:
            async for choice in self.chunks():
                yield event(self.head | {"choices": [choice]} | more)
                sent = True
            if more:
                yield event(self.head | {"choices": [], "usage": await self.usage()})
            yield event("[DONE]")
        except RegardError as error:
            if not sent:  # has a status of its own
                raise
            yield event(openai_error(str(error), 503))


def openai_error(message: str, status: int) -> dict[str, Any]:
    """An error as OpenAI's clients read it, with the field that it is about.

    >>> openai_error("best_of: needs 1, got 3", 400)["error"]["param"]
    'best_of'
    """
    name = re.match(r"(\w+)[^: ]*: ", message)  # `prompt.list[str].0: …` where several are allowed
    kind = "invalid_request_error" if status < 500 else "server_error"
    param = name[1] if name and status < 500 else None
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}
