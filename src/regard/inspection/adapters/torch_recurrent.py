"""Reruns torch's recurrent modules with regard's ops, so that their gates can be intercepted."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.inspection.adapters.module_tracker import ModelHook
from regard.ops.recurrence import CellWeights, GRUWeights, LSTMWeights, RNNWeights, State, recur
from regard.ops.recurrence.reference import cell_step

WEIGHT_TYPES: dict[type[nn.Module], type[CellWeights]] = {
    nn.RNN: RNNWeights, nn.GRU: GRUWeights, nn.LSTM: LSTMWeights, nn.RNNCell: RNNWeights,
    nn.GRUCell: GRUWeights, nn.LSTMCell: LSTMWeights,
}  # fmt: skip
OutputHook = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]


def refusal(module: nn.Module) -> str | None:
    """Why this torch module cannot be rerun with regard's ops; None when it can."""
    if getattr(module, "nonlinearity", "tanh") != "tanh":
        return f"nonlinearity={module.nonlinearity!r}, only tanh is supported"
    if getattr(module, "proj_size", 0):
        return f"proj_size={module.proj_size}, projections are not supported"
    return None


@contextmanager
def hook_outputs(model: nn.Module, on_output: OutputHook) -> Iterator[None]:
    """Call `on_output` after each recurrent torch module ran; its result replaces the output."""
    with ExitStack() as hooks:
        for path, module in model.named_modules():

            def hook(module: nn.Module, args: Any, *rest: Any, path: str = path) -> Any:
                # a forward pass in another thread may call a half-registered hook without kwargs
                *kwargs, out = rest
                return on_output(path, module, args, kwargs[0] if kwargs else {}, out)

            if type(module) in WEIGHT_TYPES:
                hooks.callback(
                    module.register_forward_hook(ModelHook(hook), with_kwargs=True).remove
                )
        yield


def rerun(module: nn.Module, x: Tensor | PackedSequence, state: Any = None) -> Any:
    """The output of a torch module, computed by regard's interceptable ops."""
    weight_type = WEIGHT_TYPES[type(module)]
    state = state if state is None or isinstance(state, tuple) else (state,)
    if isinstance(module, nn.RNNBase):
        return _rerun_layers(module, weight_type, x, state)
    assert isinstance(x, Tensor)
    cell: Any = module
    weights = weight_type.from_torch(cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    if state is None:
        state = (x.new_zeros(*x.shape[:-1], cell.hidden_size),) * len(weight_type.states)
    return _unwrap_state(cell_step(x, state, weights).state)


def _rerun_layers(
    module: nn.RNNBase, weight_type: type[CellWeights], x: Tensor | PackedSequence, state: Any
) -> tuple[Tensor | PackedSequence, Any]:
    lengths, single = None, isinstance(x, Tensor) and x.ndim == 2  # single: without a batch axis
    if isinstance(x, PackedSequence):
        values, lengths = pad_packed_sequence(x, batch_first=True)
        lengths = lengths.to(values.device)
    else:
        values = x[None] if single else x if module.batch_first else x.transpose(0, 1)
    if state is not None and single:
        state = tuple(s[:, None] for s in state)
    directions, lasts = 2 if module.bidirectional else 1, []
    for layer in range(module.num_layers):
        outs = []
        for i in range(layer * directions, (layer + 1) * directions):
            weights = weight_type.from_torch(*module.all_weights[i])
            start = None if state is None else tuple(s[i] for s in state)
            result = recur(values, weights, start, lengths=lengths, reverse=i % directions == 1)
            outs.append(result.out)
            lasts.append(result.state)
        values = torch.cat(outs, -1)
        if layer < module.num_layers - 1:
            values = F.dropout(values, module.dropout, module.training)
    last = tuple(torch.stack(s) for s in zip(*lasts, strict=True))
    if lengths is not None:
        out = pack_padded_sequence(values, lengths.cpu(), batch_first=True, enforce_sorted=False)
    elif single:
        out, last = values[0], tuple(s[:, 0] for s in last)
    else:
        out = values if module.batch_first else values.transpose(0, 1)
    return out, _unwrap_state(last)


def _unwrap_state(state: State) -> Any:
    """A state as torch returns it: (h, c), or h alone without a tuple."""
    h, *rest = state
    return state if rest else h
