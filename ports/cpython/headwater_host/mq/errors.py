"""MQMIError."""

from headwater_host.mq import CMQC

#: IBM's names of reason codes.
REASONS = {value: name for name, value in vars(CMQC).items() if name.startswith("MQRC_")}
_WORDS = {CMQC.MQCC_OK: "OK", CMQC.MQCC_WARNING: "WARNING", CMQC.MQCC_FAILED: "FAILED"}


class MQMIError(Exception):
    """A call ended with a warning or failed.

    ``comp`` is MQCC_WARNING if the call did its work, and MQCC_FAILED if it did nothing. ``reason`` is IBM's reason
    code, ``detail`` explains it. After a get with a warning, ``message`` has the data and ``original_length`` the
    length of the message in the queue; the descriptor and the options are set.
    """

    def __init__(
        self,
        comp: int,
        reason: int,
        detail: str = "",
        *,
        message: bytes | None = None,
        original_length: int | None = None,
    ):
        super().__init__(comp, reason, detail)
        self.comp = comp
        self.reason = reason
        self.detail = detail
        self.message = message
        self.original_length = original_length

    def errorAsString(self) -> str:  # noqa: N802 (its name for those who know the MQI from Python)
        """Return completion code and reason by IBM's names: ``FAILED: MQRC_Q_FULL``."""
        return f"{_WORDS.get(self.comp, self.comp)}: {REASONS.get(self.reason, f'reason {self.reason}')}"

    def __str__(self) -> str:
        what = f"{self.errorAsString()} ({self.reason})"
        return f"{what}: {self.detail}" if self.detail else what


def failed(reason: int, detail: str = "") -> MQMIError:
    """Return the error of a failed call."""
    return MQMIError(CMQC.MQCC_FAILED, reason, detail)


def warning(reason: int, detail: str = "") -> MQMIError:
    """Return the error of a call that ended with a warning."""
    return MQMIError(CMQC.MQCC_WARNING, reason, detail)
