"""Functions that several packages share: checks of values and arrays, files, memory."""
