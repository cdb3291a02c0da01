"""The capture log: every raw frame the gateway received, on disk before it is acknowledged (docs/capture-log.md).

``asyncio_writer.AsyncCapture`` writes the log, ``CaptureReader`` reads it. This package does not import
``asyncio_writer``: importing asyncio is slow on a small machine. Standard library only.
"""

from headwater_host.capture.block_log import CaptureLockedError, CaptureWriteError
from headwater_host.capture.format import RECEIVED, SENT, Block, FormatError, Header, Record
from headwater_host.capture.problem import Problem
from headwater_host.capture.reader import CaptureReader, Position, Report, SegmentTotals, list_blocks, verify
from headwater_host.capture.scan import BlockInfo

__all__ = [
    "RECEIVED",
    "SENT",
    "Block",
    "BlockInfo",
    "CaptureLockedError",
    "CaptureReader",
    "CaptureWriteError",
    "FormatError",
    "Header",
    "Position",
    "Problem",
    "Record",
    "Report",
    "SegmentTotals",
    "list_blocks",
    "verify",
]
