"""Models as ONNX files: a graph for each part, checked against torch."""
