"""Models as ONNX files: a graph for each part, checked against torch."""

from regard.models.onnx.export import Exported, export_onnx

__all__ = ["Exported", "export_onnx"]
