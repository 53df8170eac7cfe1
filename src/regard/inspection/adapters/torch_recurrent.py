"""torch's own recurrent modules walked by our ops, so that their gates pass the door."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.ops.recurrence import CellWeights, GRUWeights, LSTMWeights, RNNWeights, State, recur
from regard.ops.recurrence.steps import cell_step

WEIGHT_TYPES: dict[type[nn.Module], type[CellWeights]] = {
    nn.RNN: RNNWeights,
    nn.GRU: GRUWeights,
    nn.LSTM: LSTMWeights,
    nn.RNNCell: RNNWeights,
    nn.GRUCell: GRUWeights,
    nn.LSTMCell: LSTMWeights,
}
OutputHook = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]


def refusal(module: nn.Module) -> str | None:
    """Why this module of torch's cannot be walked by our ops; None when it can."""
    if getattr(module, "nonlinearity", "tanh") != "tanh":
        return f"nonlinearity={module.nonlinearity!r}, and our cells have tanh"
    if getattr(module, "proj_size", 0):
        return f"proj_size={module.proj_size}, and our cells have no projection"
    return None


def torch_recurrent_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The recurrent modules of torch in a model, by path."""
    for path, module in model.named_modules():
        if type(module) in WEIGHT_TYPES:
            yield path, module


@contextmanager
def hook_outputs(model: nn.Module, on_output: OutputHook) -> Iterator[None]:
    """While this lasts, `answer` hears each run of torch's recurrent modules and may replace it."""
    with ExitStack() as hooks:
        for path, module in torch_recurrent_modules(model):

            def hook(module: nn.Module, args: Any, *rest: Any, path: str = path) -> Any:
                # without kwargs where another thread's run came in while the hook is registered
                *kwargs, out = rest
                return on_output(path, module, args, kwargs[0] if kwargs else {}, out)

            hooks.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def rerun(module: nn.Module, x: Tensor | PackedSequence, state: Any = None) -> Any:
    """What torch's module answers, computed through our door."""
    kind = WEIGHT_TYPES[type(module)]
    if isinstance(module, nn.RNNBase):
        return _walk(module, kind, x, state)
    assert isinstance(x, Tensor)
    cell: Any = module
    weights = kind.from_torch(cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    if state is None:
        zero = x.new_zeros(*x.shape[:-1], cell.hidden_size)
        state = (zero,) * len(kind.states)
    return _bare(cell_step(x, state if isinstance(state, tuple) else (state,), weights).state)


def _walk(
    module: nn.RNNBase, kind: type[CellWeights], x: Tensor | PackedSequence, state: Any
) -> tuple[Tensor | PackedSequence, Any]:
    values, lengths = _batch_first(x, module.batch_first)
    starts = None if state is None else _starts(state, values, x)
    ways, lasts = 2 if module.bidirectional else 1, []
    for layer in range(module.num_layers):
        outs = []
        for i in range(layer * ways, (layer + 1) * ways):
            weights = kind.from_torch(*module.all_weights[i])
            start = None if starts is None else tuple(s[i] for s in starts)
            walk = recur(values, weights, start, lengths=lengths, reverse=i % ways == 1)
            outs.append(walk.out)
            lasts.append(walk.state)
        values = torch.cat(outs, -1)
        if layer < module.num_layers - 1:
            values = F.dropout(values, module.dropout, module.training)
    last = tuple(torch.stack(s) for s in zip(*lasts, strict=True))
    return _as_given(values, last, x, module.batch_first)


def _batch_first(x: Tensor | PackedSequence, batch_first: bool) -> tuple[Tensor, Tensor | None]:
    if isinstance(x, PackedSequence):
        values, lengths = pad_packed_sequence(x, batch_first=True)
        return values, lengths.to(values.device)
    if x.ndim == 2:  # one sequence
        return x[None], None
    return (x if batch_first else x.transpose(0, 1)), None


def _starts(state: Any, values: Tensor, x: Tensor | PackedSequence) -> State:
    states = state if isinstance(state, tuple) else (state,)
    alone = isinstance(x, Tensor) and x.ndim == 2
    return tuple(s[:, None] if alone else s for s in states)


def _as_given(
    out: Tensor, last: State, x: Tensor | PackedSequence, batch_first: bool
) -> tuple[Tensor | PackedSequence, Any]:
    if isinstance(x, PackedSequence):
        lengths = pad_packed_sequence(x)[1]
        out_packed = pack_padded_sequence(out, lengths, batch_first=True, enforce_sorted=False)
        return out_packed, _bare(last)
    if x.ndim == 2:
        out, last = out[0], tuple(s[:, 0] for s in last)
    elif not batch_first:
        out = out.transpose(0, 1)
    return out, _bare(last)


def _bare(state: State) -> Any:
    """As torch hands a state on: (h, c), but h alone without the tuple."""
    h, *rest = state
    return state if rest else h
