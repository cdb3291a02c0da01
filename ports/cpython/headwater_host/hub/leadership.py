"""The leader of the cluster, as far as connections and requests need to know (docs/protocols/fmq.md, section 4)."""

from headwater.mqtt import spec5
from headwater_host.fmq.address import Address
from headwater_host.hub.errors import RefusedError


class Leadership:
    """The leadership of a hub without others: it leads, and takes part in no election."""

    @property
    def leader(self) -> str | None:
        """The address of the hub that leads, "" if none is known; None if this hub leads."""
        return None

    def leads(self) -> bool:
        """Return whether anything may be sent to clients now."""
        return True

    def elect(self, candidate: Address, announced: bool) -> "tuple[Address, int] | None":
        """Return the leader's address and version, or None if no other hub than the candidate is known to lead.

        ``announced``: the candidate says that it leads. Raises RefusedError.
        """
        raise RefusedError(
            spec5.PROTOCOL_ERROR, "this hub takes part in no election: its storage is not PostgreSQL"
        )


def refusal(leader: str) -> tuple[int, str]:
    """Return the reason code and the text for a client of a hub that does not lead."""
    if leader:
        return spec5.SERVER_MOVED, leader
    return spec5.SERVER_UNAVAILABLE, "no hub leads at present; try again"
