"""Conformance checks for authors of plugins, which `gnnkit.testing` exports."""
