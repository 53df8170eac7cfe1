"""CUDA graph engine of a language model: static buffers, one graph per step."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.decode.gpu.buffers import StepBuffers
from regard.decode.gpu.launcher import StepLauncher, Tuning
from regard.decode.sampling import Sampling, sample_tokens
from regard.models import LanguageModel
from regard.models.config import unimplemented_option
from regard.nn import Readout
from regard.ops.intercept import is_intercepted

MAX_WIDTH = 16384  # inputs that fit in one program
MAX_PROMPT_GRAPHS = 8  # cached graphs, one per prompt length
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def can_capture(model: LanguageModel) -> bool:
    """Whether the kernels support the model, its dtype and its device."""
    config, table = model.config, model.embedding.token_embeddings
    if not _runs_on(table.device) or table.dtype not in DTYPES:
        return False
    for p in model.parameters():
        same = p.dtype == table.dtype and p.device == table.device
        if not (same and p.is_contiguous() and p.data_ptr() % 16 == 0):
            return False
    plain = unimplemented_option(config, CudaGraphEngine.options) is None
    head_dim, ffn_dim = config.resolved_head_dim, config.resolved_ffn_dim
    even = not any(size % 8 for size in (head_dim, config.dim, ffn_dim))
    even = even and config.resolved_kv_heads * head_dim % 16 == 0
    small = max(config.dim, ffn_dim, config.heads * head_dim) <= MAX_WIDTH
    # other linear layers, such as int8, compute differently
    known = type(model.readout) is Readout and all(
        type(m) is nn.Linear for m in model.modules() if isinstance(m, nn.Linear)
    )
    return plain and even and small and known and _weight_addresses(model) is not None


def _weight_addresses(model: nn.Module) -> list[Any] | None:
    """What a graph depends on: module types and weight addresses; None if a module has a hook.

    Hooks expect the modules to run. Called at every start, so it avoids `modules()` and
    `parameters()`, which take ten times as long.
    """
    parts: list[Any] = []
    todo: list[nn.Module] = [model]
    while todo:
        module = todo.pop()
        if module._forward_hooks or module._forward_pre_hooks:
            return None
        parts.append(type(module))
        for p in module._parameters.values():
            if p is not None:
                parts += (p.data_ptr(), p.dtype)
        todo += [m for m in module._modules.values() if m is not None]
    return parts


def _runs_on(device: torch.device) -> bool:
    if not find_spec("triton"):
        return False
    from regard.ops.kernels.terms import INTERPRETED

    return device.type == "cuda" or (INTERPRETED and _TRY_ON_CPU)


_TRY_ON_CPU = False  # set in tests, to run in Triton's interpreter
_ENGINES: "WeakKeyDictionary[LanguageModel, CudaGraphEngine]" = WeakKeyDictionary()


def get_engine(model: LanguageModel) -> "CudaGraphEngine":
    """The engine of a model; there is one, so that captured graphs are reused."""
    if model not in _ENGINES:
        _ENGINES[model] = CudaGraphEngine(model)
    return _ENGINES[model]


class CudaGraphEngine:
    """Runs decoding steps of one model, with a pool of buffers and their graphs."""

    # that the kernels compute; a model with another one runs its modules
    options = (
        "layers dim heads kv_heads head_dim ffn_dim vocab activation gated norm final_norm "
        "eps bias qkv_bias out_bias scale rope_theta rotate_half positions max_positions "
        "scale_embedding window tied rope_scaling"
    )

    def __init__(self, model: LanguageModel, tuning: Tuning | None = None):
        self.weight_addresses, self.is_supported = list[Any](), False
        self.launcher = StepLauncher(model, tuning or Tuning())
        self._forget()

    @property
    def model(self) -> LanguageModel:
        """The model, of which the launcher holds a weak reference."""
        return self.launcher.model

    @property
    def tuning(self) -> Tuning:
        """Tile sizes of the kernels."""
        return self.launcher.tuning

    @tuning.setter
    def tuning(self, tuning: Tuning) -> None:
        self.launcher = StepLauncher(self.model, tuning)
        self._forget()

    def ready(self) -> bool:
        """Whether the kernels support the model as it is now and nothing intercepts it."""
        addresses = _weight_addresses(self.model)
        if is_intercepted(self.model) or addresses is None:
            return False
        if addresses != self.weight_addresses:  # graphs hold addresses
            self.weight_addresses, self.is_supported = addresses, can_capture(self.model)
            self._forget()
        return self.is_supported

    def _forget(self) -> None:
        self.free_buffers, self.version = list[StepBuffers](), object()
        self.graph_pool: Any = None

    def acquire(self, rows: int, capacity: int) -> StepBuffers:
        """Buffers for this many rows and keys, from the pool if possible."""
        for n, b in enumerate(self.free_buffers):
            if b.rows == rows and b.capacity >= capacity:
                return self.free_buffers.pop(n)
        blocks = -(-self.model.config.vocab // self.launcher.logits_block(rows))
        return StepBuffers(self.model, rows, capacity, blocks)

    def run_steps(self, b: StepBuffers, steps: int, sampling: Sampling | None) -> None:
        """Run steps including the choice of tokens, without synchronising."""

        def step() -> None:
            self.launcher.launch(b)
            if sampling is None:
                self.launcher.choose_token(b)
            else:
                _sample(b, sampling)

        together = self.tuning.steps_per_graph
        for count in (*[together] * (steps // together), *[1] * (steps % together)):
            self._replay(b, (sampling, count), lambda n=count: [step() for _ in range(n)])

    def prefill(self, b: StepBuffers, length: int, work: Callable[[], None]) -> None:
        """Process a prompt: directly the first time, as a graph when its length recurs."""
        key = ("prompt", length)
        if not b.token.is_cuda or key not in b.graphs:
            work()
            b.graphs[key] = None
            return
        if b.graphs[key] is None:
            b.graphs[key] = self._capture(b, work)
            old = [k for k, graph in b.graphs.items() if k[0] == "prompt" and graph is not None]
            for k in old[:-MAX_PROMPT_GRAPHS]:
                del b.graphs[k]
        b.graphs[key].replay()

    def step(self, b: StepBuffers) -> Tensor:
        """Logits after `b.token`, in a buffer that the next step overwrites."""

        def step() -> None:
            self.launcher.launch(b)
            b.lengths.add_(1)

        self._replay(b, "logits", step)
        return b.scratch["logits"]

    def _replay(self, b: StepBuffers, key: Any, work: Callable[[], Any]) -> None:
        if not b.token.is_cuda:
            work()
            return
        key = (key, b.use_cache_rows)
        if key not in b.graphs:
            b.graphs[key] = self._capture(b, work)
        b.graphs[key].replay()

    def _capture(self, b: StepBuffers, work: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        """Capture work as a graph, after a warm-up that compiles the kernels."""
        saved = [x.clone() for x in (b.token, b.lengths, b.ended)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        for x, old in zip((b.token, b.lengths, b.ended), saved, strict=True):
            x.copy_(old)
        if self.graph_pool is None:  # shared: no graph reads what another leaves there
            self.graph_pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self.graph_pool):
            work()
        return graph


def _sample(b: StepBuffers, sampling: Sampling) -> None:
    """Sample a token per row and record it, with torch kernels."""
    logits, at = b.scratch["logits"], (b.lengths - b.start_lengths).long()[:, None]
    allowed = logits.masked_fill(b.suppress_mask.bool(), -torch.inf)
    token = sample_tokens(allowed, sampling, b.uniforms.gather(1, at)[:, 0])
    log_prob = logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(-1)
    ended = b.ended.bool()
    token = torch.where(ended, b.end, token)
    b.log_probs.scatter_(1, at, log_prob.masked_fill(ended, 0)[:, None])
    b.ended.copy_(ended | (token == b.end))
    b.output_tokens.scatter_(1, at, token[:, None])
    b.end_flags.scatter_(1, at, b.ended[:, None])
    b.token.copy_(token)
    b.lengths.add_(1)
