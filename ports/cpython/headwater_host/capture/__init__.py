"""The capture log: every raw frame the gateway received, on disk before it is acknowledged (docs/capture-log.md).

``CaptureWriter`` writes it, ``CaptureReader`` reads it; ``asyncio_writer.AsyncCapture`` writes it from asyncio, and
is not imported here: asyncio takes long to import on a small machine. Standard library only.
"""

from headwater_host.capture.block_log import CaptureLockedError, CaptureWriteError
from headwater_host.capture.format import RECEIVED, SENT, Block, FormatError, Header, Record
from headwater_host.capture.problem import Problem
from headwater_host.capture.reader import (
    CaptureReader,
    Position,
    Report,
    SegmentTotals,
    list_blocks,
    read_range,
    verify,
)
from headwater_host.capture.scan import BlockInfo
from headwater_host.capture.writer import CaptureWriter

__all__ = [
    "RECEIVED",
    "SENT",
    "Block",
    "BlockInfo",
    "CaptureLockedError",
    "CaptureReader",
    "CaptureWriteError",
    "CaptureWriter",
    "FormatError",
    "Header",
    "Position",
    "Problem",
    "Record",
    "Report",
    "SegmentTotals",
    "list_blocks",
    "read_range",
    "verify",
]
