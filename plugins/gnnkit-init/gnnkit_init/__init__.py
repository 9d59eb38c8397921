"""The search over models and keys of `job=init`."""

from gnnkit_init.trials import search as search
