"""Communicators: what moves tensors between ranks."""

from gnnkit.comm.base import Communicator as Communicator
