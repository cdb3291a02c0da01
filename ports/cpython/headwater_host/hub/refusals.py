"""What the hub refuses: every reason code, what it answers, and when. docs/hub.md shows the table.

A test compares the codes and modules of the rows with those that the code uses, so a new refusal needs a row.
"""

from typing import NamedTuple

from headwater_host.hub import errors as e


class Refusal(NamedTuple):
    """One refusal. ``answers``: the request, or AUTH* where the answer to AUTH ends the connection. ``module``: where
    in ``headwater_host.hub`` it is."""

    code: int
    answers: str
    when: str
    module: str


REFUSALS = (
    Refusal(
        e.NO_MATCHING_SUBSCRIBERS, "CONSUME with ONCE", "no message came within `once` seconds", "consume"
    ),
    Refusal(e.NO_MATCHING_SUBSCRIBERS, "call, reply", "no responder; no call waits for the reply", "rpc"),
    Refusal(
        e.NO_SUBSCRIPTION_EXISTED, "UNSUBSCRIBE, CONSUME", "the client has no such subscription", "clients"
    ),
    Refusal(e.UNSPECIFIED_ERROR, "AUTH*", "a fault of the hub, which it logs", "connection"),
    Refusal(e.UNSPECIFIED_ERROR, "AUTH*", "a fault of the hub during SUBSCRIBE, which it logs", "subscribe"),
    Refusal(e.UNSPECIFIED_ERROR, "call", "codes of 0x80 and above are the responder's own", "rpc"),
    Refusal(
        e.MALFORMED_PACKET, "the frame, or AUTH*", "a malformed frame; ends the connection", "connection"
    ),
    Refusal(
        e.PROTOCOL_ERROR,
        "any",
        "AUTH has not been accepted, or ELECT or SLAVEOF; ends the connection",
        "broker",
    ),
    Refusal(e.PROTOCOL_ERROR, "AUTH", "a second AUTH; ends the connection", "login"),
    Refusal(
        e.IMPLEMENTATION_SPECIFIC_ERROR, "REGISTER", "the topic has more queues than that", "storage.topic"
    ),
    Refusal(
        e.IMPLEMENTATION_SPECIFIC_ERROR,
        "call",
        "the responder is gone, has not answered within `rpc` seconds, or refused with a code below 0x80",
        "rpc",
    ),
    Refusal(e.CLIENT_IDENTIFIER_NOT_VALID, "AUTH*", "too long, not printable, missing, or `$hub`", "login"),
    Refusal(e.CLIENT_IDENTIFIER_NOT_VALID, "AUTH*", "the client id is another user's", "clients"),
    Refusal(e.BAD_USER_NAME_OR_PASSWORD, "AUTH*", "the user name or the password is wrong", "login"),
    Refusal(e.NOT_AUTHORIZED, "any but AUTH; a will", "the rules deny it", "access"),
    Refusal(e.SERVER_SHUTTING_DOWN, "AUTH*", "the hub ends", "broker"),
    Refusal(
        e.KEEP_ALIVE_TIMEOUT,
        "AUTH*",
        "no AUTH within `login` seconds; a frame not finished within `stalled` seconds; silence for 1.5 keep-alives",
        "broker",
    ),
    Refusal(e.SESSION_TAKEN_OVER, "AUTH*", "another connection has this client id", "clients"),
    Refusal(e.SESSION_TAKEN_OVER, "CONSUME", "another CONSUME of the same subscription", "consume"),
    Refusal(
        e.TOPIC_FILTER_INVALID, "SUBSCRIBE, CONSUME with ONCE", "not a filter, or too many levels", "topics"
    ),
    Refusal(e.TOPIC_FILTER_INVALID, "SUBSCRIBE, CONSUME with ONCE", "not a name of a group", "subscribe"),
    Refusal(
        e.TOPIC_FILTER_INVALID,
        "SUBSCRIBE, CONSUME with ONCE",
        "a malformed condition; names the column",
        "conditions",
    ),
    Refusal(
        e.TOPIC_FILTER_INVALID,
        "CONSUME",
        "the subscription has no group; or, later, the topic was deleted",
        "consume",
    ),
    Refusal(
        e.TOPIC_FILTER_INVALID,
        "SUBSCRIBE, call",
        "a responder with a group; a call with a wildcard or a condition",
        "rpc",
    ),
    Refusal(
        e.TOPIC_NAME_INVALID, "REGISTER, UNREGISTER, PUBLISH", "not a topic, or too many levels", "topics"
    ),
    Refusal(
        e.TOPIC_NAME_INVALID,
        "REGISTER, PUBLISH, SUBSCRIBE, a will",
        "begins with `$`; does not exist and `auto_register` is off; no topic has this hash",
        "registry",
    ),
    Refusal(e.TOPIC_NAME_INVALID, "PUBLISH", "the topic was deleted meanwhile", "storage.topic"),
    Refusal(e.PACKET_IDENTIFIER_IN_USE, "CONSUME", "the id is that of a CONSUME in progress", "consume"),
    Refusal(e.PACKET_IDENTIFIER_IN_USE, "call", "the id is that of a call in progress", "rpc"),
    Refusal(
        e.PACKET_TOO_LARGE, "the frame, or AUTH*", "a frame above `frame`; ends the connection", "connection"
    ),
    Refusal(
        e.PACKET_TOO_LARGE, "PUBLISH, a will", "the message would be above `frame` on its way out", "publish"
    ),
    Refusal(e.PACKET_TOO_LARGE, "call", "the call would be above `frame` for the responder", "rpc"),
    Refusal(
        e.QUOTA_EXCEEDED,
        "AUTH*",
        "too many connections; too much waits for the disk; the disk has failed for 10 seconds, at any time",
        "login",
    ),
    Refusal(
        e.QUOTA_EXCEEDED, "AUTH*", "the disk has failed for 10 seconds and an answer waits for it", "broker"
    ),
    Refusal(e.QUOTA_EXCEEDED, "AUTH*", "too many sessions or clients", "clients"),
    Refusal(e.QUOTA_EXCEEDED, "AUTH*", "too many logins wait for a password check", "users"),
    Refusal(
        e.QUOTA_EXCEEDED, "AUTH*", "`memory` is used up, and this connection has most of it", "connection"
    ),
    Refusal(e.QUOTA_EXCEEDED, "AUTH*", "messages come faster than the client reads", "broadcast"),
    Refusal(
        e.QUOTA_EXCEEDED, "REGISTER, PUBLISH", "too many topics, levels or characters of names", "topics"
    ),
    Refusal(
        e.QUOTA_EXCEEDED,
        "REGISTER, SUBSCRIBE",
        "too many queues; `places` are used up",
        "storage.topic",
    ),
    Refusal(
        e.QUOTA_EXCEEDED,
        "PUBLISH",
        "the topic or the storage is full (`full`); `waiting` or `retained` is used up",
        "storage.store",
    ),
    Refusal(e.QUOTA_EXCEEDED, "SUBSCRIBE", "`subscriptions` or `all_subscriptions` is used up", "subscribe"),
    Refusal(e.QUOTA_EXCEEDED, "CONSUME with ONCE", "`subscriptions` of them wait already", "consume"),
    Refusal(
        e.QUOTA_EXCEEDED,
        "call",
        "`calls` or `all_calls` is used up; responders are; the caller does not read results",
        "rpc",
    ),
    Refusal(e.PAYLOAD_FORMAT_INVALID, "reply", "does not begin with the id of its call", "rpc"),
    Refusal(
        e.PAYLOAD_FORMAT_INVALID,
        "call of `$hub/topics`",
        "other arguments than a filter and a topic",
        "topic_list",
    ),
)
