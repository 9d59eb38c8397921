"""Train graph neural networks on several workers."""
