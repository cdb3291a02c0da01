"""Kafka: requests and responses as kafka-python encodes them, without a broker."""

from __future__ import annotations

from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from tools.bench.wires.message import CLIENT_ID, TOPIC
from tools.bench.wires.meter import COUNT, Cost

#: The latest version that kafka-python's producer sends.
VERSION = 9
# Kafka's topic names have no slashes.
_TOPIC = TOPIC.decode().replace("/", ".")
_ALL = -1
_TIME_MS = 1_790_000_000_123
_PERIOD_MS = 1000
_PRODUCER = {"producer_id": 1001, "producer_epoch": 0, "base_sequence": 4711}


def request(payload: bytes, qos: int, count: int) -> bytes:
    """Encode a produce request with one uncompressed batch of `count` records, one second apart.

    QoS 0 is acks=0, 1 is acks=all, 2 is acks=all from an idempotent producer.
    """
    builder = MemoryRecordsBuilder(2, 0, 1 << 24, **(_PRODUCER if qos == 2 else {}))
    for number in range(count):
        builder.append(_TIME_MS + number * _PERIOD_MS, None, payload)
    builder.close()
    topic = ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData(index=0, records=builder.buffer())
    message = ProduceRequest[VERSION](
        transactional_id=None,
        acks=_ALL if qos else 0,
        timeout_ms=30000,
        topic_data=[topic(name=_TOPIC, partition_data=[partition])],
    )
    message.with_header(correlation_id=4711, client_id=CLIENT_ID.decode())
    return bytes(message.encode(header=True, framed=True))


def response() -> bytes:
    """Encode a broker's response after it stored a batch."""
    topic = ProduceResponse.TopicProduceResponse
    partition = topic.PartitionProduceResponse(
        index=0,
        error_code=0,
        base_offset=4711,
        log_append_time_ms=-1,
        log_start_offset=0,
        record_errors=[],
        error_message=None,
    )
    message = ProduceResponse[VERSION](
        responses=[topic(name=_TOPIC, partition_responses=[partition])], throttle_time_ms=0
    )
    message.with_header(correlation_id=4711)
    return bytes(message.encode(header=True, framed=True))


def check() -> None:
    """Let the library decode what it encoded. Raises ValueError."""
    data, answer = request(b"payload", 2, COUNT), response()
    read = ProduceRequest.decode(data[4:], version=VERSION, header=True)
    there = ProduceResponse.decode(answer[4:], version=VERSION, header=True)
    batch = MemoryRecords(read.topic_data[0].partition_data[0].records).next_batch()
    if (
        int.from_bytes(data[:4], "big") != len(data) - 4
        or [record.value for record in batch] != [b"payload"] * COUNT
        or there.responses[0].name != read.topic_data[0].name
    ):
        raise ValueError("kafka-python does not decode what it encoded")


def costs(payload: bytes, qos: int) -> tuple[Cost, Cost]:
    """Return the bytes of a single message, and of one in a batch of a hundred."""
    answer = len(response()) if qos else 0
    one, many = (len(request(payload, qos, count)) for count in (1, COUNT))
    return Cost(one, answer), Cost(many / COUNT, answer / COUNT)
