"""What tests of whole runs share."""

from __future__ import annotations

# The leader of every run would import it anew; processes that are forked from this one have it.
import torch.utils.tensorboard  # noqa: F401
