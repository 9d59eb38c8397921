"""PyG's mini-batch loaders over native samplers, which `gnnkit.pyg` exports."""
