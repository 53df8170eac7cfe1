"""WhisperEncoder, or the encoder of a Whisper model; the decoder is left out."""

from collections.abc import Mapping

from torch import Tensor

from regard.models.hub.family import HubFamily, HubField, NamedTensors
from regard.models.hub.marian import ENCODER_ATTENTIONS, bart_names
from regard.models.speech_encoder import SpeechEncoder, SpeechEncoderConfig


class Whisper(HubFamily):
    model_types = ("whisper",)
    architecture = "WhisperEncoder"
    model, config = SpeechEncoder, SpeechEncoderConfig
    names = {
        "positions": "embed_positions.weight",
        "subsample.convolutions.0": "conv1",
        "subsample.convolutions.1": "conv2",
        "encoder.norm": "layer_norm",
        **bart_names("encoder", ENCODER_ATTENTIONS),
    }
    # the keys have no bias there; any bias of keys adds one constant per query, which softmax drops
    zero_bias, from_tensors = ("to_k",), ()
    fields = {
        "n_mels": "num_mel_bins",
        "max_positions": "max_source_positions",
        "layers": "encoder_layers",
        "dim": "d_model",
        "heads": "encoder_attention_heads",
        "ffn_dim": "encoder_ffn_dim",
        "activation": "activation_function",
        "dropout": HubField("dropout", 0.0),
        "attention_dropout": HubField("attention_dropout", 0.0),
        "activation_dropout": HubField("activation_dropout", 0.0),
    }

    def base_names(self, tensors: Mapping[str, Tensor]) -> NamedTensors:
        first = next((name for name in tensors if name.endswith("encoder.conv1.weight")), "")
        prefix = first.removesuffix("conv1.weight")
        return {
            name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)
        }
