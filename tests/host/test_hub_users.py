"""Users' passwords: what holds, what does not, and what is never shown."""

import asyncio
import hashlib
from typing import Any

import pytest

from headwater_host.hub.errors import RefusedError
from headwater_host.hub.users import Hash, Users, check_name, entry, hashed
from headwater_host.settings import read_toml
from tests.rows import each_row


def cheap(password: bytes) -> Hash:
    return hashed(password, ln=4, r=1, p=1)


def test_a_hash_is_written_and_read() -> None:
    one, other = cheap(b"secret"), cheap(b"secret")
    assert one != other  # each has its salt
    again = Hash.parse(str(one))
    assert again == one
    assert str(one).startswith("$scrypt$ln=4,r=1,p=1$")
    assert "=" not in str(one).rpartition("p=1")[2]
    assert again.holds(b"secret")
    for wrong in (b"", b"Secret", b"secret1", b"secret "):
        assert not again.holds(wrong)
    assert repr(one) == "Hash(...)"


def test_it_is_scrypt() -> None:
    """RFC 7914, section 12, the second vector."""
    digest = bytes.fromhex(
        "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"
        "2eaf30d92e22a3886ff109279d9830dac727afb94a83ee6d8360cbdfa2cc0640"
    )
    assert Hash(10, 8, 16, b"NaCl", digest).holds(b"password")


@each_row(
    "text",
    [
        "",
        "secret",
        "$scrypt$ln=15,r=8,p=1$",
        "$scrypt$ln=0,r=8,p=1$MTIzNDU2Nzg$MTIzNDU2NzgxMjM0NTY3OA",
        "$scrypt$ln=30,r=8,p=1$MTIzNDU2Nzg$MTIzNDU2NzgxMjM0NTY3OA",
        "$scrypt$ln=15,r=8,p=999$MTIzNDU2Nzg$MTIzNDU2NzgxMjM0NTY3OA",
        "$scrypt$ln=15,r=0,p=1$MTIzNDU2Nzg$MTIzNDU2NzgxMjM0NTY3OA",
        "$scrypt$ln=15,r=8,p=1$MTIz$MTIzNDU2NzgxMjM0NTY3OA",
        "$scrypt$ln=15,r=8,p=1$MTIzNDU2Nzg$MTIz",
        "$scrypt$ln=15,r=8,p=1$MTIzNDU2N$MTIzNDU2NzgxMjM0NTY3OA",
        "$scrypt$ln=15,r=8,p=1$MTIzNDU2Nzg$MTIzNDU2NzgxMjM0NTY3OA\n",
        "$2b$12$abcdefghijklmnopqrstuv",
    ],
)
def test_what_is_no_hash_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="password") as caught:
        Hash.parse(text)
    assert not text or text not in str(caught.value)


def test_an_entry_is_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater_host.hub.users.hashed", cheap)
    for name in ("alice", 'quote " and \\', "é 温"):
        (user,) = read_toml(entry(name, b"secret"))["user"]
        assert user["name"] == name
        assert Hash.parse(user["password"]).holds(b"secret")
    with pytest.raises(ValueError, match="is empty"):
        entry("alice", b"")
    for bad in ("", "a\nb", "x" * 257):
        with pytest.raises(ValueError, match="name"):
            check_name(bad)


async def test_who_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    real = hashlib.scrypt

    def counting(*arguments: Any, **named: Any) -> bytes:
        computed.append(1)
        return real(*arguments, **named)

    users = Users({"alice": cheap(b"a"), "bob": cheap(b"b")})
    assert len(users) == 2
    monkeypatch.setattr(hashlib, "scrypt", counting)
    # A name that there is not costs what one does that there is.
    for name, password, right in (
        ("alice", b"b", False),
        ("eve", b"a", False),
        ("", b"", False),
        ("alice", b"a", True),
    ):
        before = len(computed)
        assert await users.verify(name, password) is right
        assert len(computed) == before + 1
    # What was right is remembered; nothing else is.
    before = len(computed)
    assert await users.verify("alice", b"a")
    assert len(computed) == before
    assert not await users.verify("alice", b"b")
    assert not await users.verify("bob", b"a")
    assert len(computed) == before + 2
    assert b"a" not in users._right.values()
    users.close()


async def test_nobody_gets_in_where_there_are_no_users() -> None:
    users = Users({})
    users._nobody = cheap(b"")
    assert not await users.verify("", b"")
    assert not await users.verify("alice", b"")
    users.close()


async def test_a_flood_is_refused_and_the_event_loop_goes_on() -> None:
    users = Users({"alice": hashed(b"a", ln=12)}, threads=1, waiting=3)
    tries = [asyncio.create_task(users.verify("alice", b"%d" % n)) for n in range(10)]
    await asyncio.sleep(0)
    results = await asyncio.gather(*tries, return_exceptions=True)
    refused = [result for result in results if isinstance(result, RefusedError)]
    assert len(refused) == 6
    assert refused[0].reason == 0x97
    assert results.count(False) == 4
    assert await users.verify("alice", b"a")
    users.close()


async def test_addresses_take_turns_and_each_may_have_so_many() -> None:
    users = Users({"alice": hashed(b"a", ln=12), "bob": hashed(b"b", ln=12)}, threads=1, each=5)
    order: list[str] = []

    async def verify(address: str, name: str, password: bytes) -> None:
        try:
            order.append(f"{address} {await users.verify(name, password, address)}")
        except RefusedError as error:
            order.append(f"{address} refused" if "from this address" in str(error) else str(error))

    wrong = [asyncio.create_task(verify("far", "alice", b"%d" % n)) for n in range(8)]
    await asyncio.sleep(0)
    await asyncio.gather(verify("near", "bob", b"b"), *wrong)
    # One was under way, one more in front; two had no room.
    assert order.index("near True") <= 4
    assert order.count("far refused") == 2
    assert order.count("far False") == 6
    # Who goes does not keep the place.
    tries = [asyncio.create_task(verify("far", "alice", b"x%d" % n)) for n in range(6)]
    await asyncio.sleep(0)
    for one in tries:
        one.cancel()
    await asyncio.wait(tries)
    assert await users.verify("alice", b"a", "far")
    users.close()


async def test_a_password_that_was_right_meanwhile_is_not_hashed_again() -> None:
    users = Users({"alice": hashed(b"a", ln=12)}, threads=1)
    assert await asyncio.gather(*(users.verify("alice", b"a", n) for n in range(50))) == [True] * 50
    users.close()
