"""The trace of all ranks, `trace.json`, which Chrome and ui.perfetto.dev display."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gnnkit.comm import LEADER, Mailbox, PeerLost
from gnnkit.utils.documents import Json, read_or_empty
from gnnkit.utils.spans import LIMIT, Span, Spans
from gnnkit.utils.storage import write_atomically

TRACE = "trace.json"  # file in the run folder
MOST = 400_000  # maximum number of spans of all ranks
STEP, COMPUTE = "step", "compute"
_BLOCKING = ("exchange", "sync", "wait")  # tracks that are not compute time
_ORDER = (STEP, COMPUTE, *_BLOCKING)  # order of the first tracks
_PINGS = 5
_ASK, _ANSWER, _SPANS = "trace-clock", "trace-answer", "trace-spans"
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # equal for processes with the same clock


@dataclass(frozen=True, slots=True)
class Track:
    """One rank's spans, in the leader's time."""

    rank: int
    spans: Sequence[Span]
    dropped: int
    offset: float  # seconds subtracted from the rank's clock


def limit(world_size: int) -> int:
    """Returns the maximum number of spans per rank."""
    return min(LIMIT, MOST // world_size)


def gather(spans: Spans, mailbox: Mailbox, world_size: int, timeout: float) -> list[Track]:
    """Collects all ranks' spans on the leader. Returns an empty list elsewhere.

    Collective. Ranks on one host share a clock. The clock of another host is compared
    in several round trips, of which the fastest one is used.

    Args:
        timeout: Seconds to wait for a rank.
    """
    if mailbox.rank != LEADER:
        _send_spans(spans, mailbox, timeout)
        return []
    tracks = [Track(LEADER, spans.kept, spans.dropped, 0.0)]
    for rank in range(world_size):
        if rank != LEADER:
            try:
                tracks.append(_receive_spans(rank, mailbox, timeout))
            except PeerLost:  # the run continued without this rank, so the trace omits it
                continue
    return tracks


def _send_spans(spans: Spans, mailbox: Mailbox, timeout: float) -> None:
    for _ in range(_PINGS):
        mailbox.take(_ASK, src=LEADER, timeout=timeout)
        mailbox.put(LEADER, _ANSWER, {"clock": time.perf_counter(), "machine": read_or_empty(_BOOT)})
    names = list(dict.fromkeys((track, name) for track, name, _, _ in spans.kept))
    place = {pair: index for index, pair in enumerate(names)}
    kinds = torch.tensor([place[track, name] for track, name, _, _ in spans.kept], dtype=torch.int64)
    times = torch.tensor([[begin, end] for _, _, begin, end in spans.kept], dtype=torch.float64).reshape(-1, 2)
    mailbox.put(LEADER, _SPANS, {"names": names, "dropped": spans.dropped}, {"kinds": kinds, "times": times})


def _receive_spans(rank: int, mailbox: Mailbox, timeout: float) -> Track:
    answers = []
    for _ in range(_PINGS):
        sent_at = time.perf_counter()
        mailbox.put(rank, _ASK)
        fields = mailbox.take(_ANSWER, src=rank, timeout=timeout).fields
        received_at = time.perf_counter()
        answers.append((received_at - sent_at, fields["clock"] - (sent_at + received_at) / 2))
    offset = 0.0 if fields["machine"] == read_or_empty(_BOOT) else min(answers)[1]
    message = mailbox.take(_SPANS, src=rank, timeout=timeout)
    kinds, times = message.tensors["kinds"].tolist(), (message.tensors["times"] - offset).tolist()
    names = message.fields["names"]
    spans = [(*names[kind], begin, end) for kind, (begin, end) in zip(kinds, times, strict=True)]
    return Track(rank, spans, message.fields["dropped"], offset)


def save(tracks: Sequence[Track], folder: Path) -> None:
    """Writes the trace into the run folder."""
    text = json.dumps(to_chrome(tracks), separators=(",", ":"))
    write_atomically(folder / TRACE, text.encode())


def to_chrome(tracks: Sequence[Track]) -> Json:
    """Returns the trace in Chrome's format: ranks as processes, tracks as threads."""
    begin = min((span[2] for track in tracks for span in track.spans), default=0.0)
    events = [event for track in tracks for event in _events(track, begin)]
    offsets = {f"rank {track.rank}": track.offset for track in tracks if track.offset}
    drop_counts = {f"rank {track.rank}": track.dropped for track in tracks if track.dropped}
    metadata = {"clock_offsets_seconds": offsets, "spans_left_out": drop_counts}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": metadata}


def _events(track: Track, origin: float) -> Iterator[Mapping[str, object]]:
    spans = [*track.spans, *computing(track.spans)]
    names = list(dict.fromkeys([*_ORDER, *sorted({span[0] for span in spans})]))
    yield _name_event("process_name", track.rank, 0, f"rank {track.rank}")
    for number, name in enumerate(names):
        yield _name_event("thread_name", track.rank, number, name)
        yield {"ph": "M", "name": "thread_sort_index", "pid": track.rank, "tid": number, "args": {"sort_index": number}}
    place = {name: number for number, name in enumerate(names)}
    for row, name, begin, end in spans:
        yield {
            "ph": "X",
            "name": name,
            "cat": row,
            "pid": track.rank,
            "tid": place[row],
            "ts": round(1e6 * (begin - origin), 1),
            "dur": round(1e6 * max(end - begin, 0.0), 1),
        }


def _name_event(kind: str, rank: int, number: int, name: str) -> Mapping[str, object]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": number, "args": {"name": name}}


def computing(spans: Iterable[Span]) -> Iterator[Span]:
    """Yields the parts of steps without exchange, synchronisation and waiting."""
    sorted_spans = sorted(spans, key=lambda span: span[2])
    blocking = [span for span in sorted_spans if span[0] in _BLOCKING]
    first = 0
    for _, name, begin, end in (span for span in sorted_spans if span[0] == STEP):
        while first < len(blocking) and blocking[first][3] <= begin:
            first += 1
        at = begin
        for index in range(first, len(blocking)):
            if blocking[index][2] >= end:
                break
            if blocking[index][2] > at:
                yield COMPUTE, name, at, blocking[index][2]
            at = max(at, blocking[index][3])
        if at < end:
            yield COMPUTE, name, at, end
