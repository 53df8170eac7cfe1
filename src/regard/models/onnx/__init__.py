"""Models as ONNX files: a graph for each part, checked against torch."""

from regard.models.onnx.export import OnnxFile, export_onnx

__all__ = ["OnnxFile", "export_onnx"]
