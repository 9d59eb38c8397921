"""What tests of whole runs share."""

from __future__ import annotations

# Processes forked from this one have the module, and need not import it anew.
import torch.utils.tensorboard  # noqa: F401
