"""Jobs that run one beside the other, and what they print."""

from __future__ import annotations

import fcntl
import os

import pytest

from gnnkit.launch import jobs


def test_errors_of_a_process_with_many_open_files_are_read() -> None:
    reads, writes = os.pipe2(os.O_NONBLOCK)
    try:
        high = fcntl.fcntl(reads, fcntl.F_DUPFD, 1500)
    except OSError:
        pytest.skip("this process may open no more files")
    os.write(writes, b"told")
    assert jobs._ready([high], 5.0) == {high}
    assert jobs._read(high) == b"told"
    assert jobs._ready([high], 0.0) == set()
    for each in (reads, writes, high):
        os.close(each)
