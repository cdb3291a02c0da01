"""Printable names of MQTT 5.0's properties and reason codes."""

from headwater.mqtt import spec5 as s

#: Identifier -> name (2.2.2.2, table 2-4).
PROPERTIES = {
    s.PAYLOAD_FORMAT_INDICATOR: "payload_format_indicator",
    s.MESSAGE_EXPIRY_INTERVAL: "message_expiry_interval",
    s.CONTENT_TYPE: "content_type",
    s.RESPONSE_TOPIC: "response_topic",
    s.CORRELATION_DATA: "correlation_data",
    s.SUBSCRIPTION_IDENTIFIER: "subscription_identifier",
    s.SESSION_EXPIRY_INTERVAL: "session_expiry_interval",
    s.ASSIGNED_CLIENT_IDENTIFIER: "assigned_client_identifier",
    s.SERVER_KEEP_ALIVE: "server_keep_alive",
    s.AUTHENTICATION_METHOD: "authentication_method",
    s.AUTHENTICATION_DATA: "authentication_data",
    s.REQUEST_PROBLEM_INFORMATION: "request_problem_information",
    s.WILL_DELAY_INTERVAL: "will_delay_interval",
    s.REQUEST_RESPONSE_INFORMATION: "request_response_information",
    s.RESPONSE_INFORMATION: "response_information",
    s.SERVER_REFERENCE: "server_reference",
    s.REASON_STRING: "reason_string",
    s.RECEIVE_MAXIMUM: "receive_maximum",
    s.TOPIC_ALIAS_MAXIMUM: "topic_alias_maximum",
    s.TOPIC_ALIAS: "topic_alias",
    s.MAXIMUM_QOS: "maximum_qos",
    s.RETAIN_AVAILABLE: "retain_available",
    s.USER_PROPERTY: "user_property",
    s.MAXIMUM_PACKET_SIZE: "maximum_packet_size",
    s.WILDCARD_SUBSCRIPTION_AVAILABLE: "wildcard_subscription_available",
    s.SUBSCRIPTION_IDENTIFIER_AVAILABLE: "subscription_identifier_available",
    s.SHARED_SUBSCRIPTION_AVAILABLE: "shared_subscription_available",
}

#: Reason code -> name (2.4, table 2-6). 0 has two more names: see ``code_name``.
CODES = {
    s.SUCCESS: "success",
    s.GRANTED_QOS_1: "granted_qos_1",
    s.GRANTED_QOS_2: "granted_qos_2",
    s.DISCONNECT_WITH_WILL: "disconnect_with_will_message",
    s.NO_MATCHING_SUBSCRIBERS: "no_matching_subscribers",
    s.NO_SUBSCRIPTION_EXISTED: "no_subscription_existed",
    s.CONTINUE_AUTHENTICATION: "continue_authentication",
    s.RE_AUTHENTICATE: "re_authenticate",
    s.UNSPECIFIED_ERROR: "unspecified_error",
    s.MALFORMED_PACKET: "malformed_packet",
    s.PROTOCOL_ERROR: "protocol_error",
    s.IMPLEMENTATION_SPECIFIC_ERROR: "implementation_specific_error",
    s.UNSUPPORTED_PROTOCOL_VERSION: "unsupported_protocol_version",
    s.CLIENT_IDENTIFIER_NOT_VALID: "client_identifier_not_valid",
    s.BAD_USER_NAME_OR_PASSWORD: "bad_user_name_or_password",
    s.NOT_AUTHORIZED: "not_authorized",
    s.SERVER_UNAVAILABLE: "server_unavailable",
    s.SERVER_BUSY: "server_busy",
    s.BANNED: "banned",
    s.SERVER_SHUTTING_DOWN: "server_shutting_down",
    s.BAD_AUTHENTICATION_METHOD: "bad_authentication_method",
    s.KEEP_ALIVE_TIMEOUT: "keep_alive_timeout",
    s.SESSION_TAKEN_OVER: "session_taken_over",
    s.TOPIC_FILTER_INVALID: "topic_filter_invalid",
    s.TOPIC_NAME_INVALID: "topic_name_invalid",
    s.PACKET_IDENTIFIER_IN_USE: "packet_identifier_in_use",
    s.PACKET_IDENTIFIER_NOT_FOUND: "packet_identifier_not_found",
    s.RECEIVE_MAXIMUM_EXCEEDED: "receive_maximum_exceeded",
    s.TOPIC_ALIAS_INVALID: "topic_alias_invalid",
    s.PACKET_TOO_LARGE: "packet_too_large",
    s.MESSAGE_RATE_TOO_HIGH: "message_rate_too_high",
    s.QUOTA_EXCEEDED: "quota_exceeded",
    s.ADMINISTRATIVE_ACTION: "administrative_action",
    s.PAYLOAD_FORMAT_INVALID: "payload_format_invalid",
    s.RETAIN_NOT_SUPPORTED: "retain_not_supported",
    s.QOS_NOT_SUPPORTED: "qos_not_supported",
    s.USE_ANOTHER_SERVER: "use_another_server",
    s.SERVER_MOVED: "server_moved",
    s.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "shared_subscriptions_not_supported",
    s.CONNECTION_RATE_EXCEEDED: "connection_rate_exceeded",
    s.MAXIMUM_CONNECT_TIME: "maximum_connect_time",
    s.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: "subscription_identifiers_not_supported",
    s.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: "wildcard_subscriptions_not_supported",
}

_SUBACK = 9
_DISCONNECT = 14


def code_name(code: int, packet_type: int) -> str:
    """Return the name of a reason code in a packet of this type; ``"unknown"`` for an undefined code."""
    if code == 0 and packet_type == _SUBACK:
        return "granted_qos_0"
    if code == 0 and packet_type == _DISCONNECT:
        return "normal_disconnection"
    return CODES.get(code, "unknown")
