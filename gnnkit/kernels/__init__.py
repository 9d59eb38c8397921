"""Kernels: aggregation over local edges, and the operations around it."""
