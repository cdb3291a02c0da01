# heap: 1M
"""Payloads cut into segments go through clients that have to wait, and keepers that lose the connection."""

from client_pair import Pair
from fmq_kept import Kept as FmqKept
from kept import Kept
from segmenting import TOPIC, Stream, function, joined, made, payload_of

from headwater.errors import E_AGAIN, E_CLOSED, E_OFFLINE, E_TOO_LARGE, E_WINDOW
from headwater.ibmmq.segments import DONE, LATER, MORE


def test_run_waits_for_what_has_to_be_waited_for() -> None:
    s = made()
    s.begin(TOPIC, Stream(payload_of(100), (0, 50, 0)), 100)
    s.client.answers = [E_WINDOW, 0, E_OFFLINE, E_AGAIN]
    assert s.run() == DONE
    assert joined([call[1] for call in s.client.calls])[0][3] == payload_of(100)
    s.begin(TOPIC, Stream(payload_of(100)), 100)
    s.client.answers = [0, E_OFFLINE, 0, E_TOO_LARGE]
    s.client.waits = [E_CLOSED]
    assert [s.run(), s.run(), s.run()] == [E_CLOSED, E_TOO_LARGE, DONE]
    assert joined([call[1] for call in s.client.calls])[1][3] == payload_of(100)


def test_a_client_of_mqtt_at_every_qos_with_a_small_outbox() -> None:
    data = payload_of(3000)
    for qos in (0, 1, 2):
        p = Pair(outbox_size=400, slots=3, tx_size=160)
        p.client.connect()
        s = made(p.client)
        assert s.begin(TOPIC, Stream(data), 3000, qos) == 0
        assert s.run() == DONE
        p.settle()
        assert joined(p.at_server)[0][3] == data, qos


def test_a_keeper_of_mqtt_goes_on_over_a_cut() -> None:
    data = payload_of(1500)
    for qos in (1, 2):
        k = Kept().online()
        s = made(k.keeper)
        assert s.begin(TOPIC, Stream(data), 1500, qos) == 0
        n = 0
        status = MORE
        while status > 0:
            status = s.step()
            n += 1
            if n % 37 == 0:
                k.site.cut()
            if status == LATER:
                k.keeper.wait(50)
            assert n < 5000
        assert status == DONE
        k.keeper.wait(5000)
        assert k.keeper.connections > 1
        seen = []
        for payload in k.site.got:
            # At QoS 1 something may have come twice.
            if payload not in seen:
                seen.append(payload)
        assert qos == 1 or len(seen) == len(k.site.got)
        assert joined(seen)[0][3] == data


def test_a_keeper_of_fmq_goes_on_over_another_connection() -> None:
    data = payload_of(1500)
    k = FmqKept()
    k.online()
    s = made(k.keeper)
    assert s.begin(TOPIC, function(data), None, 1) == 0
    status = n = 1
    while status > 0:
        status = s.step()
        n += 1
        if n % 20 == 0:
            k.again()
        if status == LATER:
            k.keeper.wait(50)
        assert n < 5000
    k.settled()
    assert status == DONE and k.keeper.connections > 1
    assert joined([one[1] for one in k.hub.stored])[0][3] == data
