"""The leader chooses: layouts compared by words, or by predicted seconds and memory."""
