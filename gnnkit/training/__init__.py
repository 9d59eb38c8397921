"""Lightning: the module, the trainer, DDP, checkpoints and callbacks."""
