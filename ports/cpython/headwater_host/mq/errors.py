"""What a call of the queue manager raises: IBM's completion code and reason, and what it means here."""

from headwater_host.mq import CMQC

#: IBM's names of reason codes.
REASONS = {value: name for name, value in vars(CMQC).items() if name.startswith("MQRC_")}
_WORDS = {CMQC.MQCC_OK: "OK", CMQC.MQCC_WARNING: "WARNING", CMQC.MQCC_FAILED: "FAILED"}


class MQMIError(Exception):
    """A call ended with another completion code than MQCC_OK.

    ``comp`` is MQCC_WARNING when the call did what it was asked, with a remark, and MQCC_FAILED when it did nothing.
    ``reason`` is one of IBM's reason codes, ``detail`` says more. A get that ended with a warning has what it got:
    ``message``, the data, and ``original_length``, how many bytes there are of it in the queue; the descriptor and the
    options that were given to it are filled in.
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
        """Completion code and reason in IBM's words: ``FAILED: MQRC_Q_FULL``."""
        return f"{_WORDS.get(self.comp, self.comp)}: {REASONS.get(self.reason, f'reason {self.reason}')}"

    def __str__(self) -> str:
        what = f"{self.errorAsString()} ({self.reason})"
        return f"{what}: {self.detail}" if self.detail else what


def failed(reason: int, detail: str = "") -> MQMIError:
    """The error of a call that did nothing."""
    return MQMIError(CMQC.MQCC_FAILED, reason, detail)


def warning(reason: int, detail: str = "") -> MQMIError:
    """The error of a call that did what it was asked, with a remark."""
    return MQMIError(CMQC.MQCC_WARNING, reason, detail)
