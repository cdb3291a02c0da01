"""The gateway's queue of IBM MQ's kind and its log: once each, whatever becomes of the log or of the room."""

import random
from collections import Counter
from functools import partial

import pytest

from headwater_host.gateway.mq import Follower
from headwater_host.mq.errors import MQMIError
from tests.host.mq_log import Log, cut, dead, segment, take
from tools.capture_log import LogWriter

# ---- once each ------------------------------------------------------------------------------------------------------


def _over(left: list[int]) -> bool:
    """SQLite calls this again and again, and stops when it returns true."""
    left[0] -= 1
    return left[0] < 0


def test_stopped_in_the_middle_of_anything(log: Log) -> None:
    """Whatever was not committed has not happened, whatever was is not done again."""
    rng = random.Random(4)
    whole = [rng.randbytes(300) for _ in range(6)]
    pieces = [p for n, data in enumerate(whole) for p in cut(data, 64, group=bytes([n + 1]) * 24)]
    pieces += [b"plain %d" % n for n in range(10)]
    rng.shuffle(pieces)
    for at in range(0, len(pieces), 8):
        log.block(*pieces[at : at + 8])
    deaths = 0
    for step in range(1, 1200, 25):
        left = [step]
        follower = log.follow()
        follower._chunk = 3
        follower._forward.file.db.set_progress_handler(partial(_over, left), 50)
        try:
            follower.step()
        except MQMIError:
            # SQLite was told to stop in the middle.
            deaths += 1
        finally:
            follower._forward.file.db.close()
            log.followers.remove(follower)
    assert deaths > 3
    log.followed()
    found = Counter(log.data())
    assert found == Counter([*whole, *(p for p in pieces if p.startswith(b"plain"))])


def test_it_goes_on_where_it_was(log: Log) -> None:
    log.block(b"1", b"2")
    log.followed()
    log.block(b"3")
    log.restart()
    log.block(b"4")
    log.followed()
    log.followed()
    assert log.data() == [b"1", b"2", b"3", b"4"]


def test_what_was_there_before_is_left_out_unless_asked_for(log: Log) -> None:
    log.block(b"old")
    follower = log.followed(start="now")
    log.block(b"new")
    follower.step()
    log.restart()
    log.block(b"newer")
    log.followed(start="beginning")
    assert log.data() == [b"new", b"newer"]


def test_what_is_not_on_disk_is_not_taken(log: Log) -> None:
    log.block(b"1")
    log.block(b"2")
    durable = [1]
    follower = Follower(log.config(), log.path, lambda: durable[0])
    log.followers.append(follower)
    follower.step()
    assert log.data() == [b"1"]
    durable[0] = 2
    follower.step()
    assert log.data() == [b"1", b"2"]


def test_segments_of_the_log_that_are_gone_are_told(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.block(b"1")
    follower = log.followed()
    for payload in (b"2", b"3", b"4"):
        log.restart()
        log.block(payload)
    for path in sorted(log.path.glob("segment-*"))[:3]:
        path.unlink()
    follower.step()
    assert log.data() == [b"1", b"4"]
    assert follower.status()["blocks_missed"] == 2
    assert "2 blocks of the log in front of block 3 are damaged or gone" in caplog.text


def test_what_is_gone_is_told_once_although_the_queue_is_full(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.block(b"1")
    follower = log.followed(depth=1)
    for payload in (b"2", b"3"):
        log.restart()
        log.block(payload, payload)
    for path in sorted(log.path.glob("segment-*"))[:2]:
        path.unlink()
    for _ in range(3):
        follower.step()
        assert (follower.state, follower.status()["blocks_missed"]) == ("full", 0)
    assert "or gone" not in caplog.text
    for want in (b"1", b"3", b"3"):
        assert take(log, 1) == [want]
        follower.step()
    assert follower.status()["blocks_missed"] == 1
    assert caplog.text.count("1 blocks of the log in front of block 2 are damaged or gone") == 1


def test_a_segment_that_goes_in_the_middle_of_a_block(log: Log) -> None:
    log.block(b"1", b"2", b"3")
    follower = log.followed(depth=2)
    log.restart()
    log.block(b"4", b"5")
    min(log.path.glob("segment-*")).unlink()
    assert take(log, 2) == [b"1", b"2"]
    follower.step()
    assert log.data() == [b"4", b"5"]
    assert follower.status()["blocks_missed"] == 1


def test_a_damaged_block_is_passed_over_and_told(log: Log) -> None:
    for payload in (b"1", b"2", b"3"):
        log.block(payload * 1000)
    (path,) = log.path.glob("segment-*")
    data = bytearray(path.read_bytes())
    data[data.index(b"2" * 1000) + 500] ^= 1
    path.write_bytes(data)
    follower = log.followed()
    assert [data[:1] for data in log.data()] == [b"1", b"3"]
    assert (follower.status()["damage"], follower.status()["blocks_missed"]) == (1, 1)


def test_a_damaged_end_is_told_once(log: Log) -> None:
    log.block(b"1")
    log.block(b"2" * 1000)
    (path,) = log.path.glob("segment-*")
    data = bytearray(path.read_bytes())
    data[-500] ^= 1
    path.write_bytes(data)
    log.restart()
    follower = log.follow()
    for _ in range(5):
        follower.step()
    assert follower.status()["damage"] == 1
    log.block(b"3")
    follower.step()
    assert log.data() == [b"1", b"3"]
    assert (follower.status()["damage"], follower.status()["blocks_missed"]) == (1, 1)


def test_what_is_not_for_the_queue_does_not_wear_out_the_disk(log: Log) -> None:
    follower = log.follow()
    log.block(b"x", topic="a/b")
    follower.step()
    written = follower._forward.file.db.total_changes
    for _ in range(5):
        log.block(b"x", topic="other")
        follower.step()
    assert follower._forward.file.db.total_changes == written
    assert follower.status()["blocks_behind"] == 0
    # Killed now, it reads them again, to no effect.
    again = log.follow()
    assert again.status()["blocks_behind"] == 5
    again.step()
    assert log.data() == [b"x"]
    # Ended in good order, it does not.
    again.stop()
    again.run()
    assert log.follow().status()["blocks_behind"] == 0


def _replace(log: Log) -> None:
    """Another log in the place of this one."""
    log.writer.close()
    for path in log.path.iterdir():
        path.unlink()
    log.writer = LogWriter(log.path)


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_another_log_in_its_place_is_read_from_its_beginning(
    log: Log, caplog: pytest.LogCaptureFixture, blocks: int
) -> None:
    log.block(b"1")
    log.block(b"2")
    log.followed()
    _replace(log)
    others = [b"other %d" % n for n in range(blocks)]
    for payload in others:
        log.block(payload)
    follower = log.follow(start="now")
    assert f"blocks up to 2 of another log than this, which has {blocks}" in caplog.text
    follower.step()
    assert log.data() == [b"1", b"2", *others]
    assert follower.status()["blocks_missed"] == 0
    caplog.clear()
    # Whoever has run a command in this process has set all loggers to INFO.
    caplog.set_level("WARNING")
    log.followed()
    assert (log.data()[2:], caplog.text) == (others, "")


def test_another_log_before_anything_was_read(log: Log) -> None:
    log.block(b"old")
    log.followed(start="now")
    _replace(log)
    log.block(b"other 1")
    log.block(b"other 2")
    log.followed(start="now")
    assert log.data() == [b"other 1", b"other 2"]


def test_an_older_copy_of_the_log_that_has_grown(log: Log) -> None:
    log.block(b"1")
    (path,) = log.path.glob("segment-*")
    copy = path.read_bytes()
    log.block(b"2")
    log.followed()
    _replace(log)
    log.writer.close()
    path.write_bytes(copy)
    log.writer = LogWriter(log.path)
    for payload in (b"3", b"4"):
        log.block(payload)
    log.followed()
    assert log.data() == [b"1", b"2", b"1", b"3", b"4"]


def test_a_log_that_has_nothing_yet_is_no_other(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        log.followed()
    assert "another log" not in caplog.text


def test_removed_segments_do_not_make_it_another_log(log: Log) -> None:
    log.block(b"1")
    log.followed()
    log.restart()
    for path in log.path.glob("segment-*"):
        path.unlink()
    log.block(b"2")
    log.restart()
    follower = log.followed()
    assert log.data() == [b"1", b"2"]
    assert follower.status()["blocks_missed"] == 0


# ---- room -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bound", [{"depth": 7}, {"message_bytes": 2000, "bytes": 300_000, "spill": 1 << 16}], ids=str
)
def test_a_full_queue_stops_the_follower_which_catches_up_later(log: Log, bound: dict[str, int]) -> None:
    size = 10 if "depth" in bound else 1500
    payloads = [b"%04d" % n * (size // 4) for n in range(250 if size > 10 else 40)]
    for at in range(0, len(payloads), 9):
        log.block(*payloads[at : at + 9])
    follower = log.follow(**bound)
    taken: list[bytes] = []
    full = 0
    for _ in range(400):
        follower.step()
        status = follower.status()
        if status["blocks_behind"]:
            assert status["state"] == "full"
            full += 1
            assert status["depth"] <= 7 or "depth" not in bound
            size_now = follower._forward.file.size()
            assert size_now <= 300_000 + (1 << 16) + 8192 or "bytes" not in bound
        elif not status["depth"]:
            break
        taken += take(log, min(5 if "depth" in bound else 60, status["depth"]))
    assert full >= 2
    assert taken == payloads


def test_a_message_that_is_whole_when_the_queue_is_full(log: Log) -> None:
    """What was handed out, and could not be put, is handed out again."""
    data = bytes(range(100))
    log.block(b"plain", *cut(data, 40), b"behind")
    follower = log.follow(depth=1)
    taken = []
    for _ in range(3):
        follower.step()
        follower.step()
        taken += take(log, 1)
    assert taken == [b"plain", data, b"behind"]
    assert follower.status()["duplicates"] == 0


def test_a_full_dead_letter_queue_stops_nothing(log: Log) -> None:
    log.block(*[segment(b"x", MsgSeqNumber=0)] * 5, b"plain")
    follower = log.followed(depth=3)
    assert len(dead(log)) == 3
    assert log.data() == [b"plain"]
    assert follower.status()["not_set_aside"] == 2


def test_problems_do_not_flood_the_log(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.block(*[segment(b"x", MsgSeqNumber=0)] * 50)
    follower = log.followed()
    assert 15 < len(caplog.records) < 30
    assert follower.status()["problems"] == {"number": 50}
