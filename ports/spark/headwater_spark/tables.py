"""Tables and views: their columns, types and schemas.

A column's type is given once, in Spark's notation. `python -m tools.diagrams` writes these tables to `docs/spark.md`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


#: The partition column of all tables: the UTC date of a row's time. It is not in the files.
PARTITION = "date"


class Column(NamedTuple):
    """A column: its name, Spark type and description. `repeats` requests a Parquet dictionary."""

    name: str
    type: str
    what: str
    repeats: bool = False


class Table(NamedTuple):
    """A table of the pipeline, or a view of the data source."""

    name: str
    what: str
    columns: tuple[Column, ...]
    #: The column that decides the partition; "": all rows are in the partition without a date.
    clock: str = "time_ns"

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return [column.name for column in self.columns]

    @property
    def ddl(self) -> str:
        """The schema as a Spark DDL string."""
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)

    @property
    def arrow(self) -> Any:
        """The Arrow schema of the Parquet files, with dictionaries for strings that repeat."""
        return pa.schema([pa.field(column.name, _stored(column)) for column in self.columns])

    @property
    def delta(self) -> Any:
        """The Arrow schema of the Delta table: the columns and the partition."""
        return self.plain.append(pa.field(PARTITION, pa.date32()))

    @property
    def plain(self) -> Any:
        """The Arrow schema without dictionaries, as Spark requires of a data source."""
        return pa.schema([pa.field(column.name, _ARROW[column.type]) for column in self.columns])


def _stored(column: Column) -> Any:
    arrow = _ARROW[column.type]
    return pa.dictionary(pa.int32(), arrow) if column.repeats and column.type == "string" else arrow


def table(name: str, what: str, text: str, clock: str = "time_ns") -> Table:
    """Create a table from a line for each column: name, type with ``*`` if values repeat, description."""
    rows = (line.split(maxsplit=2) for line in text.splitlines() if line)
    columns = (Column(name, kind.rstrip("*"), what, kind.endswith("*")) for name, kind, what in rows)
    return Table(name, what, tuple(columns), clock)


_WHERE = """
    file    string*  segment file
    offset  long*    offset of the block in the segment file
    record  int      index of the record in its block
"""
_RECEIVED = """
    time        timestamp  receive time, µs
    time_ns     long       receive time, ns since 1970
    connection  long*      connection id, never reused
    peer        string*    sender, or receiver of a sent frame
    direction   short*     0 = received by the gateway, 1 = sent
    protocol    short*     1 = MQTT, 2 = FMQ, 3 = IBM MQ
    version     short*     MQTT: protocol level 3, 4 or 5
    mark        short*     set by the gateway: 1 = original, 2 = duplicate, 3 = uncertain, 0 = none
    first_ns    long       duplicates: receive time of the original; otherwise null
"""
# Numbers too large for these columns are null; the bytes of the id are complete.
_MESSAGE_ID = """
    message_id  binary  FMQ: message id; null for MQTT
    process     long*   FMQ: process number of the message id
    thread      long*   FMQ: thread number of the message id
"""
_PROPERTIES = """
    content_type      string*             MQTT 5.0: content type
    message_expiry    long                MQTT 5.0: message expiry interval, s
    response_topic    string*             MQTT 5.0: response topic
    correlation_data  binary              MQTT 5.0: correlation data
    user_properties   map<string,string>  MQTT 5.0: user properties; the last value of a name
"""
FRAMES = table(
    "frames",
    "recorded frames, undecoded",
    f"""
{_RECEIVED}
    frame  binary  frame as received
{_WHERE}""",
)
BADBLOCKS = table(
    "badblocks",
    "damage in the log: bad blocks, gaps, lost segments, a torn tail",
    """
    kind    string  bad, gap, missing, manifest or torn
    file    string  segment file, or manifest.jsonl
    offset  long    offset in the file
    length  long    number of bytes; 0 if only the order is wrong
    reason  string  description of the damage
""",
)
POSITIONS = table(
    "positions",
    "the end of the log, or of a stream's micro-batch",
    """
    log       string  id of the log
    file      string  segment file
    offset    long    offset in the segment file
    sequence  long    sequence number of the next block
""",
)
DECODED = table(
    "decoded",
    "recorded frames of MQTT and FMQ, decoded",
    f"""
{_RECEIVED}
    kind       short          packet or frame type, 0 to 15; null if not decoded
    dup        boolean        PUBLISH: DUP flag
    qos        short          PUBLISH: 0, 1 or 2
    retain     boolean        PUBLISH: RETAIN flag
    packet_id  int            MQTT: packet identifier of a PUBLISH at QoS 1 and 2
    topic      string         topic of PUBLISH and CONSUMERESP
    payload    binary         payload of PUBLISH and CONSUMERESP
    tags       array<string>  FMQ: tags of PUBLISH and CONSUMERESP
{_PROPERTIES}
{_MESSAGE_ID}
    id_type   short   FMQ: frame type of the message id
    id_ns     long    FMQ: time of the message id, ns since 1970
    reason    string  reason if malformed, otherwise null
    error_at  int     offset of the error in the frame
{_WHERE}""",
)
MESSAGES = table(
    "messages",
    "one row per received message, without duplicates",
    f"""
    time      timestamp       first receipt, µs
    time_ns   long            first receipt, ns since 1970
    topic     string*         topic
    qos       short*          QoS of the first receipt; null for CONSUMERESP
    retain    boolean         RETAIN flag; null for CONSUMERESP
    payload   binary          payload
    protocol  short*          1 = MQTT, 2 = FMQ
    tags      array<string>*  FMQ: tags; null for MQTT
{_PROPERTIES}
{_MESSAGE_ID}
    board               string*  identity: board; null without an identity
    boot                long*    identity: number of the board's start
    seq                 long     identity: sequence number since that start
    sent_ns             long     send time, ns since 1970; null if unknown
    copies              int*     number of frames that carried it
    possible_duplicate  boolean  another row may be the same message
    packet_id           int      MQTT: packet identifier of the first receipt; null at QoS 0
    mark                short*   mark of the first receipt
    connection          long*    connection of the first receipt
    peer                string*  sender of the first receipt
{_WHERE}""",
)
TELEMETRY = table(
    "telemetry",
    "one row per value in a payload that is a JSON object, a CBOR or FMQ Map, a number, or has a decoder",
    """
    board         string*    null without an identity
    boot          long*      null without an identity
    seq           long       null without an identity
    topic         string*    topic
    time          timestamp  send time; null if unknown
    metric        string*    key of the value; `value` if the payload is a number
    value_double  double     number, boolean (0 or 1) or duration (s)
    value_string  string     string, or FMQ time (ISO 8601, UTC)
    received_ns   long       first receipt of the message, ns since 1970
    latency_ms    double     receive time minus send time
""",
    clock="received_ns",
)
LOGICAL_MESSAGES = table(
    "logical_messages",
    "one row per IBM MQ logical message, reassembled",
    """
    time            timestamp  first receipt of a part, µs
    time_ns         long       first receipt of a part, ns since 1970
    last_ns         long       last receipt of a part, ns since 1970
    topic           string*    topic
    group_id        binary     GroupId, 24 bytes
    seq             int        MsgSeqNumber, the position in the group
    complete        boolean    whether the payload is complete
    payload         binary     payload without MQMDEs; null if incomplete
    length          long       bytes received
    format          string*    Format of the payload, without trailing blanks
    encoding        int*       Encoding of the payload
    ccsid           int*       CodedCharSetId of the payload
    segments        int*       number of physical messages
    duplicates      int*       number of redundant physical messages
    missing         string     missing ranges or contradictions; null if complete
    reason          int*       IBM MQ reason code; null if complete
    last_in_group   boolean    whether it is the last of its group; null without a group
    group_complete  boolean    whether the group is complete; null without a group
    group_missing   string     missing messages or contradictions of the group; null if complete
""",
)
QUARANTINE = table(
    "quarantine",
    "malformed frames, refused payloads and damaged blocks",
    """
    kind        string*  frame, message or block
    reason      string*  reason code as a word
    detail      string   description
    error_at    int      offset of the error in the frame, or in the payload for an MQMDE
    file        string*  segment file
    offset      long     offset of the block in the segment file
    record      int      index of the record in its block; null for a block
    length      long     number of bytes
    bytes       binary   bytes; the first MiB of a block
    time_ns     long     receive time, ns since 1970; null for a block
    connection  long     connection id; null for a block
    peer        string*  sender; null for a block
    direction   short    0 = received, 1 = sent; null for a block
""",
)
DEVICE_HEALTH = table(
    "device_health",
    "one row per board, start and hour of receipt",
    """
    time                 timestamp  start of the hour
    time_ns              long       start of the hour, ns since 1970
    board                string*    null: all messages without an identity
    boot                 long*      number of the board's start; null without an identity
    messages             long       rows of `messages`
    copies               long       frames that carried them; duplicates = copies - messages
    possible_duplicates  long       messages that may be duplicates
    sequences            long       different values of seq; null without an identity
    first_seq            long       lowest seq; null without an identity
    last_seq             long       highest seq; null without an identity
    missing              long       seqs skipped in this hour, minus those of earlier hours that arrived late
    restarted            boolean    whether this start replaced an earlier one in this hour
    first_ns             long       first receipt, ns since 1970
    last_ns              long       last receipt, ns since 1970
    timed                long       messages with a send time
    latency_p50_ms       double     median of receive time minus send time; null without send times
    latency_p90_ms       double     90th percentile
    latency_p99_ms       double     99th percentile
    latency_max_ms       double     maximum
""",
)
RECONCILIATION = table(
    "reconciliation",
    "one row per start of a board: what it says it sent, and what is stored",
    """
    board         string*  board
    boot          long     number of the board's start
    first_ns      long     first receipt, ns since 1970
    last_ns       long     last receipt, ns since 1970
    first_seq     long     lowest seq
    last_seq      long     highest seq
    expected      long     seqs from the lowest to the highest
    stored        long     different values of seq in `messages`, counted in each hour of receipt
    missing       long     expected - stored
    messages      long     rows of `messages`
    copies        long     frames that carried them; duplicates = copies - messages
    sent          long     messages in the board's own record; null without a record
    acknowledged  long     those of `sent` with an acknowledgement
    lost          long     acknowledged at QoS 1 or 2, but not stored
""",
    clock="",
)

#: Tables that the pipeline writes.
TABLES = (FRAMES, MESSAGES, LOGICAL_MESSAGES, TELEMETRY, QUARANTINE)
#: Tables that follow from `messages`: `headwater_spark.health`.
DERIVED = (DEVICE_HEALTH, RECONCILIATION)
#: Views that the data source reads.
VIEWS = {table.name: table for table in (FRAMES, DECODED, BADBLOCKS, POSITIONS)}
