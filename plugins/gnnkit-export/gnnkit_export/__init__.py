"""Writes trained models to files for torch or ONNX Runtime: `gnnkit.export`."""
