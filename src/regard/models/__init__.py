"""Whole networks, their configs and presets."""

from regard.models.classifier import (
    Classifier,
    ClassifierConfig,
    classifier_base,
    classifier_tiny,
    nearest_by_cosine,
)
from regard.models.config import (
    StackConfig,
    TokenConfig,
    make_decoder,
    make_embedding,
    make_encoder,
)
from regard.models.hub.convert import from_transformers
from regard.models.language import (
    LanguageConfig,
    LanguageModel,
    language_base,
    language_small,
    language_tiny,
)
from regard.models.mlp import MLP, MLPConfig
from regard.models.onnx import OnnxFile, export_onnx
from regard.models.quantization import is_quantized, quantize
from regard.models.recogniser import (
    Recogniser,
    RecogniserConfig,
    ctc_loss,
    recogniser_small,
    recogniser_tiny,
)
from regard.models.recurrent import (
    RecurrentTranslator,
    RecurrentTranslatorConfig,
    recurrent_small,
    recurrent_tiny,
)
from regard.models.resnet import ResNet, ResNetConfig, resnet_of_size
from regard.models.serialization import build, config_types, load, save
from regard.models.speech_encoder import SpeechEncoder, SpeechEncoderConfig
from regard.models.translator import (
    Translator,
    TranslatorConfig,
    translator_base,
    translator_small,
    translator_tiny,
)
from regard.models.vision import (
    VisionConfig,
    VisionTransformer,
    vision_base,
    vision_small,
    vision_tiny,
)

__all__ = [
    "Classifier",
    "ClassifierConfig",
    "OnnxFile",
    "LanguageConfig",
    "LanguageModel",
    "MLP",
    "MLPConfig",
    "Recogniser",
    "RecogniserConfig",
    "RecurrentTranslator",
    "RecurrentTranslatorConfig",
    "ResNet",
    "ResNetConfig",
    "SpeechEncoder",
    "SpeechEncoderConfig",
    "StackConfig",
    "TokenConfig",
    "Translator",
    "TranslatorConfig",
    "VisionConfig",
    "VisionTransformer",
    "build",
    "classifier_base",
    "classifier_tiny",
    "config_types",
    "ctc_loss",
    "export_onnx",
    "from_transformers",
    "is_quantized",
    "language_base",
    "language_small",
    "language_tiny",
    "load",
    "make_decoder",
    "make_embedding",
    "make_encoder",
    "nearest_by_cosine",
    "quantize",
    "recogniser_small",
    "recogniser_tiny",
    "recurrent_small",
    "recurrent_tiny",
    "resnet_of_size",
    "save",
    "translator_base",
    "translator_small",
    "translator_tiny",
    "vision_base",
    "vision_small",
    "vision_tiny",
]
