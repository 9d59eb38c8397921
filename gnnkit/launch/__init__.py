"""Where ranks come from: processes of this machine, torchrun, or a batch system."""
