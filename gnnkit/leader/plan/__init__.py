"""Compares layouts by words, or by measured seconds and memory."""
