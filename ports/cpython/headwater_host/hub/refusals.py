"""Every refusal of the hub: reason code, answered request, and cause. docs/hub.md shows the table.

A test compares the codes and modules of the rows with those that the code uses, so a new refusal needs a row.
"""

from typing import NamedTuple

from headwater.mqtt import spec5


class Refusal(NamedTuple):
    """One refusal. ``module``: where in ``headwater_host.hub`` it is. ``answers``: the request, or AUTH* where the
    answer to AUTH ends the connection."""

    code: int
    module: str
    answers: str
    when: str


#: By reason code: the module, the request, and when it is refused.
_TABLE = """
NO_MATCHING_SUBSCRIBERS
  consume | CONSUME with ONCE | no message came within `once` seconds
  rpc | call, reply | there is no responder, or no call for the reply
NO_SUBSCRIPTION_EXISTED
  clients | UNSUBSCRIBE, CONSUME | the client has no such subscription
UNSPECIFIED_ERROR
  connection | AUTH* | an error in the hub, which logs it
  subscribe | AUTH* | an error during SUBSCRIBE, which the hub logs
  rpc | call | the responder refuses; it may choose any code from 0x80 on
MALFORMED_PACKET
  connection | the frame, or AUTH* | a malformed frame; ends the connection
PROTOCOL_ERROR
  broker | any | before AUTH is accepted; ends the connection
  replication.serving | SLAVEOF, PUBLISH to `$hub/changes` | no `[replication]`; no SLAVEOF before; malformed payload
  leadership | ELECT | the storage is not PostgreSQL; ends the connection
  cluster.follower | any | this hub does not lead; ends the connection
  login | AUTH | a second AUTH; ends the connection
IMPLEMENTATION_SPECIFIC_ERROR
  storage.topic | REGISTER | the topic has more queues
  time_service | call of `$hub/time` | the clock of the machine is not synchronized
  rpc | call | the responder disconnects, does not answer within `rpc` seconds, or refuses with a code below 0x80
  replication.serving | AUTH* | the slave cannot follow this hub
  replication.administration | call of `$hub/replication` | the hub cannot do what its operator asks for
CLIENT_IDENTIFIER_NOT_VALID
  login | AUTH* | too long, not printable, missing, or `$hub`
  clients | AUTH* | the client id is another user's
BAD_USER_NAME_OR_PASSWORD
  login | AUTH* | the user name or the password is wrong
NOT_AUTHORIZED
  access | any but AUTH; a will | the rules deny it
SERVER_UNAVAILABLE
  leadership | AUTH* | this hub does not lead, and knows no hub that does
SERVER_BUSY
  storage.sessions | AUTH* | a slave has no process numbers left
  cluster.member | ELECT | this hub is taking the lease over
SERVER_SHUTTING_DOWN
  broker | AUTH* | the hub stops
KEEP_ALIVE_TIMEOUT
  cluster.follower | AUTH* | no AUTH within `login` on a hub that does not lead
  broker | AUTH* | AUTH or password check exceeds `login`, a frame `stalled`, or silence 1.5 keep-alives
SESSION_TAKEN_OVER
  clients | AUTH* | another connection has this client id
  consume | CONSUME | another CONSUME of the same subscription
TOPIC_FILTER_INVALID
  topics | SUBSCRIBE, CONSUME with ONCE | not a filter, or too many levels
  subscribe | SUBSCRIBE, CONSUME with ONCE | not a group name
  conditions | SUBSCRIBE, CONSUME with ONCE | a malformed condition (the text names the column)
  consume | CONSUME | the subscription has no group; the topic was deleted during CONSUME
  rpc | SUBSCRIBE, call | a responder names a group; a call has a wildcard or a condition
TOPIC_NAME_INVALID
  topics | REGISTER, UNREGISTER, PUBLISH | not a topic, or too many levels
  registry | REGISTER, PUBLISH, SUBSCRIBE, a will | begins with `$`; unregistered without `auto_register`; unknown hash
  storage.topic | PUBLISH | the topic was deleted meanwhile
PACKET_IDENTIFIER_IN_USE
  consume | CONSUME | the id is that of a CONSUME in progress
  rpc | call | the id is that of a call in progress
PACKET_TOO_LARGE
  connection | the frame, or AUTH* | a frame exceeds `frame`; ends the connection
  publish | PUBLISH, a will | the delivered frame would exceed `frame`
  rpc | call | the frame to the responder would exceed `frame`
QUOTA_EXCEEDED
  login | AUTH* | too many connections; too much waits for the disk; the disk has failed for 10 seconds
  broker | AUTH* | it has failed and this client waits for it
  clients | AUTH* | too many sessions or clients
  users | AUTH* | too many logins wait for a password check
  connection | AUTH* | `memory` is used up, and this connection has most of it
  broadcast | AUTH* | messages arrive faster than the client reads them
  topics | REGISTER, PUBLISH | too many topics, levels or characters of names
  storage.topic | REGISTER, SUBSCRIBE | too many queues; `places` are used up
  storage.store | PUBLISH | the topic or the storage is full (`full`); `waiting` or `retained` is used up
  subscribe | SUBSCRIBE | `subscriptions` or `all_subscriptions` is used up
  consume | CONSUME with ONCE | more than `subscriptions` wait
  rpc | call | `calls` or `all_calls` is used up; all responders are busy; the caller does not read results
PAYLOAD_FORMAT_INVALID
  rpc | reply | does not begin with the id of its call
  topic_list | call of `$hub/topics` | arguments are not a filter and a topic
  replication.administration | call of `$hub/replication` | arguments are not a command
SERVER_MOVED
  leadership | AUTH* | this hub does not lead; the text is the leader's address
"""


def _refusals() -> tuple[Refusal, ...]:
    found: list[Refusal] = []
    code = 0
    for line in _TABLE.strip().splitlines():
        if line.startswith(" "):
            found.append(Refusal(code, *(cell.strip() for cell in line.split("|"))))
        else:
            code = getattr(spec5, line)
    return tuple(found)


REFUSALS = _refusals()
