"""Models, their configs and presets, saved files, and conversion from and to Hugging Face."""

from regard.models.baselines import MLP, MLPConfig, ResNet, ResNetConfig, resnet_of_size
from regard.models.classifier import (
    Classifier,
    ClassifierConfig,
    classifier_base,
    classifier_tiny,
    nearest_by_cosine,
)
from regard.models.config import (
    MODELS,
    StackConfig,
    TokenConfig,
    build,
    config_types,
    make_decoder,
    make_embedding,
    make_encoder,
    register_model,
)
from regard.models.hub.folder import (
    from_pretrained,
    from_transformers,
    save_pretrained,
    to_transformers,
)
from regard.models.language import (
    LanguageConfig,
    LanguageModel,
    language_base,
    language_delta,
    language_small,
    language_tiny,
)
from regard.models.ngram import NgramConfig, NgramModel, fit_ngrams
from regard.models.onnx.export import OnnxFile, export_onnx
from regard.models.recurrent import (
    RecurrentTranslator,
    RecurrentTranslatorConfig,
    recurrent_small,
    recurrent_tiny,
)
from regard.models.serialization import load, save
from regard.models.speech import (
    Recogniser,
    RecogniserConfig,
    SpeechEncoder,
    SpeechEncoderConfig,
    ctc_loss,
    recogniser_small,
    recogniser_tiny,
)
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
from regard.models.words import WordRecogniser, WordRecogniserConfig
from regard.nn.int8 import is_quantized, quantize

__all__ = [
    "Classifier", "ClassifierConfig", "LanguageConfig", "LanguageModel", "MLP", "MLPConfig",
    "MODELS", "NgramConfig", "NgramModel", "OnnxFile", "Recogniser", "RecogniserConfig",
    "RecurrentTranslator", "RecurrentTranslatorConfig", "ResNet", "ResNetConfig",
    "SpeechEncoder", "SpeechEncoderConfig", "StackConfig", "TokenConfig", "Translator",
    "TranslatorConfig", "VisionConfig", "VisionTransformer", "WordRecogniser",
    "WordRecogniserConfig", "build", "classifier_base", "classifier_tiny", "config_types",
    "ctc_loss", "export_onnx", "fit_ngrams", "from_pretrained", "from_transformers",
    "is_quantized", "language_base", "language_delta", "language_small", "language_tiny",
    "load", "make_decoder", "make_embedding", "make_encoder", "nearest_by_cosine", "quantize",
    "recogniser_small", "recogniser_tiny", "recurrent_small", "recurrent_tiny",
    "register_model", "resnet_of_size", "save", "save_pretrained", "to_transformers",
    "translator_base", "translator_small", "translator_tiny", "vision_base", "vision_small",
    "vision_tiny",
]  # fmt: skip
