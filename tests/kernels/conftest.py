"""What tests of kernels share."""

import pytest

from gnnkit.kernels import products


@pytest.fixture
def product_shapes(monkeypatch):
    """Lets any processor ask oneDNN, and lists the shapes of its products."""
    shapes = []
    original = products._by_onednn

    def counted(x, turned, bias=None):
        shapes.append((tuple(x.shape), tuple(turned.shape)))
        return original(x, turned, bias)

    monkeypatch.setattr(products, "library", lambda: "oneDNN")
    monkeypatch.setattr(products, "_by_onednn", counted)
    return shapes
