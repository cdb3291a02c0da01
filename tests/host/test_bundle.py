"""A bundle does what the modules do that it is made of, is imported as they are, and says what it cannot take along.

That the whole core does so, the portable tests prove (``test_portable.py``), and the allocation proofs.
"""

import ast
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import mpy, sizes
from tools.components import names
from tools.components.build import Options, build, write
from tools.components.contents import contents
from tools.components.program import BundleError
from tools.components.tree import Quick, children, walk
from tools.runtimes import run_unix
from tools.toolchain import ROOT

#: What is easily done wrong, each in a module of its own, and what it must print.
TRAPS = {
    "a local name like a global of another module": (
        {"one": "def send(n):\n    return n + 1\n"},
        "from headwater import one\n"
        "def main(send):\n    n = one.send(send)\n    return n, [send for send in (1, 2)]\nprint(main(3))\n",
    ),
    "a parameter like a function's short name": (
        {"one": "def _a(b):\n    return b * 2\ndef both(sorted, b=3):\n    return _a(sorted) + _a(b)\n"},
        "from headwater.one import both\nprint(both(sorted=4), both(1, b=2))\n",
    ),
    "a class and its bases": (
        {
            "one": "class A:\n    n = 1\n    def __init__(self, a):\n        self._x = a\n"
            "    def get(self):\n        return self._x + self.n\n    def _more(self):\n        return 10\n",
            "two": "from headwater.one import A\n"
            "class B(A):\n    n = 5\n    def __init__(self, a, b):\n        super().__init__(a)\n        self._y = b\n"
            "    def get(self):\n        return super().get() + self._y + self._more()\n"
            "    def _more(self):\n        return super()._more() + 1\n",
            "three": "from headwater.two import B\nclass C(B):\n"
            "    def _more(self):\n        return super()._more() * 2\n",
        },
        "from headwater.three import C\nprint(C(100, 1000).get())\n",
    ),
    "two subclasses of one class": (
        {
            "one": "class A:\n    def __init__(self):\n        self._x = 1\n"
            "    def get(self):\n        return self._x\n"
            "class B(A):\n    def get(self):\n        return super().get() + 1\n"
            "class C(A):\n    def get(self):\n        return super().get() + 2\n",
        },
        "from headwater.one import B, C\nprint(B().get(), C().get())\n",
    ),
    "what is overridden of a base further up": (
        {
            "one": "class A:\n    def get(self):\n        return 1\n    def more(self):\n        return 5\n"
            "class B(A):\n    def more(self):\n        return super().more() * 10\n"
            "class C(B):\n    def get(self):\n        return super().get() + self.more()\n"
            "class D(A):\n    def get(self):\n        return super().get() + 2\n",
        },
        "from headwater.one import C, D\nprint(C().get(), D().get())\n",
    ),
    "constants, and what looks like one": (
        {
            "one": "from micropython import const\n_A = const(3)\nB = const(_A << 2 | 1)\nC = -B\n"
            "changed = 1\nchanged = 2\n",
            "two": "from headwater import one\nfrom headwater.one import B as b\n"
            "def get(B=7):\n    return b, B, one.C, one.changed\n",
        },
        "from headwater.two import get\nfrom headwater.one import B, C\nprint(get(), B, C)\n",
    ),
    "a table filled by a loop": (
        {
            "one": "TABLE = bytearray(4)\nfor _i in b'\\x01\\x03':\n    TABLE[_i] = _i\nUNUSED = bytearray(9)\n"
        },
        "from headwater.one import TABLE\nprint(bytes(TABLE))\n",
    ),
    "properties and names in strings": (
        {
            "one": "class A:\n    _hidden = 4\n    def __init__(self):\n        self._x = 0\n"
            "    @property\n    def x(self):\n        return self._x\n"
            "    @x.setter\n    def x(self, value):\n        self._x = value + getattr(self, '_hidden')\n",
        },
        "from headwater.one import A\na = A()\na.x = 5\nprint(a.x)\n",
    ),
    "what a class uses as it is made": (
        {
            "one": "def _two(n=2):\n    return n + n\n_limit = 5 * [1]\n"
            "class A:\n"
            + "".join(f"    def _m{n}(self):\n        return {n}\n" for n in range(70))
            + "    _table = _two()\n    _names = [_two, _limit, bytes(3), abs(-1), all, sum]\n"
            "    def get(self, f=_two, g=_limit, h=sorted, i=hash):\n"
            "        return f(), len(g), h(b'ba'), self._table, self._names[2], self._names[5](g)\n"
            + "    def total(self):\n        return "
            + " + ".join(f"self._m{n}()" for n in range(70))
            + "\n",
        },
        "from headwater.one import A\nprint(A().get(), A().total())\n",
    ),
    "one name in two modules": (
        {
            "mqtt/__init__": "",
            "mqtt/one": "def read():\n    return 'one'\n",
            "mqtt/two": "from headwater.mqtt import one\ndef read():\n    return one.read() + 'two'\n",
        },
        "from headwater.mqtt import one, two\nprint(one.read(), two.read())\n",
    ),
    "values that never change, and those that do": (
        {
            "one": "_NONE = (None, 0, 1)\ndef _double(n):\n    return 2 * n\n"
            "class A:\n    kind = 3\n    limit = 5\n    _way = _double\n    _plain = staticmethod(_double)\n"
            "    def __init__(self, first, second=7, *, third=9):\n"
            "        self.first = self._hook = self._other = None\n        self.second = second\n"
            "        self._third = third\n"
            "        self._count = self.seen = 0\n        self._made = _double\n        self.text = 'a'\n"
            "        self._pair = _NONE\n"
            "    def run(self):\n        if self._pair[0] or not self._pair[-1]:\n            return 'never'\n"
            "        self._count += 1\n        n = self._hook\n        if self._hook is not None:\n"
            "            self._hook(self._count)\n        if self._other is None or self.first:\n"
            "            self.seen = 2\n"
            "        self._at(self, 1)\n        self.limit -= 1\n        k = 0\n        k += 1\n"
            "        return (self._made(self._count), self._plain(4), self.kind, self.limit, self.second,\n"
            "                self._third, getattr(self, 'text'), self.seen and self._other or self.first,\n"
            "                not self._hook, _more(1, 2))\n"
            "    def _at(self, other, n):\n        while other._hook:\n            n += 1\n        else:\n"
            "            other._other = n\n"
            "class B(A):\n    kind = 4\n    def __init__(self):\n        super().__init__(0, 8)\n"
            "    def way(self):\n        return self._way.__class__.__name__ != 'function'\n"
            "def _more(a, b, c=0):\n    try:\n        if c:\n            return 'c'\n    finally:\n        a += c\n"
            "    return a + b if not c else c\n",
        },
        "from headwater.one import A, B\nclass C(A):\n    limit = 50\n"
        "c = C(0)\nc.first = 'set'\nprint(A(1).run(), B().run(), B().way(), c.run(), c.run(), A(1, third=2).run())\n",
    ),
    "what objects from outside have": (
        {
            "one": "class Port:\n    def __init__(self, line: 'Line'):\n        self.line = line\n"
            "        self.closed = False\n"
            "        self.text = bytearray(b'ab')\n    def close(self):\n        self.line.close()\n"
            "        self.closed = True\n"
            "        self.text.append(99)\n        return self.status()\n    def status(self):\n"
            "        return self.closed, self.line.state.text(), bytes(self.text)\n",
            "types": "class Line:\n    state: State\n    def close(self): ...\n"
            "class State:\n    def text(self): ...\nclass Other:\n    closed: bool\n",
        },
        "from headwater.one import Port\nLine = type('Line', (), {'close': lambda self: print('closed')})\n"
        "Line.state = type('State', (), {'text': lambda self: 8})()\n"
        "print(Port(Line()).close())\n",
    ),
    "texts and numbers of exceptions": (
        {
            "one": "class Error(Exception):\n    def __init__(self, code, text=''):\n        self.code = code\n"
            "def fail(n):\n    if n:\n        raise Error(7)\n    raise ValueError('a text')\n"
        },
        "from headwater.one import Error, fail\ntry:\n    fail(1)\nexcept Error as e:\n    print(e.code)\n"
        "try:\n    fail(0)\nexcept ValueError:\n    print('no value')\n",
    ),
    "a sum with nothing": (
        {"one": "def get(flag, n, more=0):\n    return flag + 0, flag + more, n + 1 + 0, n * 2 + more\n"},
        "from headwater.one import get\nprint(get(True, 2), get(False, True))\n",
    ),
    "functions that are called once": (
        {
            "one": "class Log:\n    def __init__(self):\n        self.text = ''\n"
            "def get(log, n):\n    i = n\n    for n in range(3):\n        _note(log, n, _next(log, i))\n"
            "    if _is_odd(i):\n        return _last(log, i + 1)\n    return _first(log, i)\n"
            "def _note(log, i, n):\n    i += 10\n    log.text += str(i) + ',' + str(n) + ';'\n"
            "def _next(log, n):\n    log.text += 'x'\n    return n + 1\n"
            "def _is_odd(n):\n    return n & 1 == 1\n"
            "def _last(log, n):\n    for i in range(n):\n        if i == 3:\n            return log.text + 'three'\n"
            "    log.text += 'end'\n"
            "def _first(log, n):\n    try:\n        return log.text + str(1 // n)\n"
            "    except ZeroDivisionError:\n        return 'zero'\n",
        },
        "from headwater.one import Log, get\nprint(get(Log(), 3), get(Log(), 1), get(Log(), 0), get(Log(), 2))\n",
    ),
}
CONNECT = """
from headwater.mqtt.backlog import Backlog
from headwater.mqtt.client import Client
from headwater.errors import E_WINDOW
from headwater.mqtt.keeper import Keeper
class Line:
    answer = b"\\x20\\x02\\0\\0"
    def readinto(self, buf, n):
        n = len(self.answer)
        buf[:n] = self.answer
        self.answer = b""
        return n or None
    def write(self, buf, off, n):
        return n
    def close(self):
        pass
    def open(self):
        return self
    def ticks_ms(self):
        return 0
    def wait(self, ms):
        pass
client = Client(Line(), b"board", clean=False, slots=1)
client.session.set_will(b"gone", b"", 1)
keeper = Keeper(client, backlog=Backlog(100, 4))
keeper.subscribe(b"a/#", 1)
keeper.start()
while not client.connected:
    keeper.poll()
print(client.connected, client.publish(b"topic", b"payload", 1), client.publish(b"topic", b"payload", 2))
assert E_WINDOW == -21
"""
REFUSED = {
    "import headwater.two": r"one\.py:1: import headwater\.two: import it with",
    "def f():\n    from headwater.two import g": r"one\.py:2: .*imported late",
    "def f():\n    global x\n    x = 1": r"one\.py:2: global x: a global that changes",
    "class A(metaclass=type):\n    pass": r"one\.py:1: .*a class must be plain",
    "from headwater.two import none\ndef f():\n    return none": r"one\.py:3: none: headwater\.two has no none",
    "from headwater import two\ndef f():\n    return two": r"one\.py:3: two: a module can only be used",
    "def f():\n    def g():\n        pass\n    return g": r"one\.py:2: .*a function within a function",
    "from headwater.three import x\ny = x": r"there is no module headwater\.three",
}


def lay(folder: Path, modules: dict[str, str]) -> Path:
    for name, text in {"__init__": "", **modules}.items():
        path = folder / "headwater" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run(script: Path, path: Path) -> str:
    done = run_unix(script, path=[path])
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.needs_micropython
@pytest.mark.parametrize(
    "options", [Options(), Options(lines=True, names=True), Options(only_used=True, texts=False)]
)
@pytest.mark.parametrize("trap", TRAPS)
def test_a_bundle_does_what_its_modules_do(trap: str, options: Options, tmp_path: Path) -> None:
    modules, program = TRAPS[trap]
    plain = lay(tmp_path / "plain", modules)
    script = tmp_path / "program" / "main.py"
    script.parent.mkdir()
    script.write_text(program)
    expected = run(script, plain)
    write(build([str(script)], options, plain), tmp_path / "bundle", options)
    assert run(script, tmp_path / "bundle") == expected


@pytest.mark.needs_micropython
@pytest.mark.parametrize("seed", range(20))
def test_it_does_not_matter_which_names_are_given(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that hides another may do so by chance only: here are twenty chances."""
    script = tmp_path / "program" / "main.py"
    script.parent.mkdir()
    script.write_text(CONNECT)
    shuffled = random.Random(seed).sample(names.NUMBERED, len(names.NUMBERED))
    monkeypatch.setattr(names, "NUMBERED", shuffled)
    write(build([str(script)]), tmp_path / "lib")
    assert run(script, tmp_path / "lib") == "True 1 -21\n"


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_bundled_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    root = lay(tmp_path, {"one": text, "two": ""})
    with pytest.raises(BundleError, match=REFUSED[text]):
        build(["headwater.one"], root=root)


@pytest.mark.parametrize(
    "what, message",
    [
        ("headwater.nothing", "neither a module"),
        ("os", "neither a module"),
        ("headwater_board.nothing", "there is no module headwater_board.nothing"),
        ("headwater.types", "there is nothing of headwater"),
        ("{}/absent.py", "No such file"),
        ("{}/broken.py", "invalid syntax"),
        ("{}/wrong.py", "headwater.errors has no E_NOTHING"),
        ("{}/dotted.py", r"dotted\.py:2: a bundle has no headwater\.mqtt\.client: import it with `from`"),
        ("{}/other.py", "there is nothing of headwater"),
    ],
)
def test_what_is_asked_for_must_exist(what: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "wrong.py").write_text("from headwater.errors import E_NOTHING")
    (tmp_path / "dotted.py").write_text("import os\nimport headwater.mqtt.client as c")
    (tmp_path / "other.py").write_text("import time")
    with pytest.raises(BundleError, match=message):
        build([what.format(tmp_path)])


def test_only_what_programs_use_needs_programs() -> None:
    with pytest.raises(BundleError, match="name programs instead"):
        build(["headwater.mqtt.client"], Options(only_used=True))


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    bundle = build(["headwater.errors"])
    with pytest.raises(BundleError, match="not empty"):
        write(bundle, tmp_path)
    assert mine.read_text() == "mine"
    for _ in range(2):
        write(bundle, tmp_path / "new")


def test_names_with_a_number_have_one(tmp_path: Path) -> None:
    """The compiler writes such a name as its number: no letter of it is in the file."""
    source = tmp_path / "names.py"
    source.write_text("\n".join(f"x.{name}" for name in names.NUMBERED))
    mpy.compile_file(source, tmp_path / "names.mpy", "n", "-O3")
    found = (tmp_path / "names.mpy").read_bytes()
    assert [name for name in names.NUMBERED if name.encode() in found] == []
    assert len(set(names.NUMBERED)) == len(names.NUMBERED)


def test_public_names_stay_and_private_ones_go() -> None:
    source = build(["headwater.mqtt.client", "headwater.errors", "headwater_board.tcp"])
    text = source.sources["__init__"]
    for kept in (
        "class Client:",
        "def publish(self, topic, payload, qos=0, retain=False):",
        "def __init__(self, dialer, client_id=b'', session=None, **options):",
        "outbox_size=1024",
        "self.on_message",
    ):
        assert kept in text, kept
    for gone in ("_enqueue", "headwater_mqtt", '"""', "Transport", "E_WINDOW", "const("):
        assert gone not in text, gone
    assert "E_WINDOW = -21\n" in source.sources["errors"]
    assert "from headwater import Client" in source.sources["mqtt/client"]
    assert list(source.ports) == ["headwater_board.tcp"]


def test_only_used_keeps_what_the_program_and_its_port_name(tmp_path: Path) -> None:
    program = tmp_path / "main.py"
    program.write_text(
        "from headwater.mqtt.client import Client\nfrom headwater_board.tcp import Tcp\n"
        "client = Client(Tcp('x'))\nclient.connect()\nclient.publish(b'a', b'b')\n"
    )
    bundle = build([str(program)], Options(only_used=True))
    text = bundle.sources["__init__"]
    assert "def publish(" in text
    assert "def unsubscribe(" not in text
    assert any(name.endswith("Client.unsubscribe") for name in bundle.dropped)
    assert "def unsubscribe(" in build([str(program)]).sources["__init__"]


HANDLERS = "from headwater.mqtt.client import Client\nclient = Client(x)\nclient.connect()\n"


@pytest.mark.parametrize(
    "text",
    [
        'setattr(client, "on_" + kind, print)',
        'setattr(client, f"on_{kind}", print)',
        'setattr(client, "on_%s" % kind, print)',
        'setattr(client, "on_{}".format(kind), print)',
        'setattr(client, "on_message" if kind else "sink", print)',
        'for kind in ("message", "delivered"):\n    setattr(client, "on_" + kind, print)',
        'for name in ("on_message", "on_delivered"):\n    setattr(client, name, print)',
        'for name, f in (("on_message", print), ("sink", x)):\n    setattr(client, name, f)',
        'for name, f in {"on_message": print, "sink": x}.items():\n    setattr(client, name, f)',
        'name = "on_message"\nsetattr(client, name, print)',
        'import builtins\nbuiltins.setattr(client, "on_" + kind, print)',
        "[setattr(client, 'on_' + kind, print) for kind in x]",
        'setattr(client, "on_%(kind)s" % x, print)',
        'name = "message"\nsetattr(client, f"on_{name:.9}", print)',
        'name = "sink"\nfrom x import name\nsetattr(client, "on_" + name, print)',
        'from operator import attrgetter\nattrgetter("on_" + kind)(client)',
    ],
)
def test_a_handler_whose_name_is_put_together_is_kept(text: str, tmp_path: Path) -> None:
    """All that a part of the name may mean stays, by its name."""
    program = tmp_path / "main.py"
    program.write_text(HANDLERS)
    assert "on_message" in build([str(program)], Options(only_used=True)).settled
    program.write_text(f"{HANDLERS}{text}\n")
    bundle = build([str(program)], Options(only_used=True))
    assert "on_message" not in bundle.settled
    assert ".on_message" in bundle.sources["__init__"]
    # What else there is goes as before.
    assert "auto_ack" in bundle.settled


@pytest.mark.parametrize(
    "text, what",
    [
        ("setattr(client, name, print)", "setattr(client, name, print)"),
        ("def f(name):\n    setattr(client, name, print)", "setattr(client, name, print)"),
        ("for name in x:\n    setattr(client, name, print)", "setattr(client, name, print)"),
        ('name = "on_message"\nname += x\nsetattr(client, name, print)', "setattr(client, name, print)"),
        ("setattr(client, *x)", "setattr(client, *x)"),
        ("getattr(client, x())(1)", "getattr(client, x())"),
        ("getattr(client, kind + x)", "getattr(client, kind + x)"),
        ("put = setattr", "setattr"),
        ("map(getattr, x, y)", "getattr"),
        ("client.__dict__[kind] = print", "client.__dict__"),
        ("object.__setattr__(client, kind, print)", "object.__setattr__"),
        ("vars(client)[kind] = print", "vars(client)"),
        ("exec('client.on_message = print')", "exec('client.on_message = print')"),
        ("eval(x)", "eval(x)"),
        ("__import__('headwater.mqtt.client')", "__import__('headwater.mqtt.client')"),
        ("__import__(x)", "__import__(x)"),
        ("import operator\noperator.attrgetter(x)(client)", "operator.attrgetter(x)"),
        ("type('Mine', (Client,), x)", "type('Mine', (Client,), x)"),
        ("import builtins\nbuiltins.exec(x)", "builtins.exec(x)"),
        ("import builtins\nput = builtins.setattr", "builtins.setattr"),
        (
            "import builtins\ngetattr(builtins, 'setattr')(client, kind, print)",
            "getattr(builtins, 'setattr')",
        ),
        ("from builtins import exec as run", "from builtins import exec as run"),
        ("from operator import *", "from operator import *"),
        ("getattr(client, '__dict__')[kind] = print", "getattr(client, '__dict__')"),
        ("getattr(client, '__di' + kind)[kind] = print", "getattr(client, '__di' + kind)"),
        (
            "name = 'on_message'\nfrom x import name\nsetattr(client, name, print)",
            "setattr(client, name, print)",
        ),
        (
            "name = 'on_message'\nmatch x:\n    case [name]:\n        pass\nsetattr(client, name, print)",
            "setattr(client, name, print)",
        ),
    ],
)
def test_a_name_that_cannot_be_seen_is_refused_with_its_place(text: str, what: str, tmp_path: Path) -> None:
    program = tmp_path / "main.py"
    program.write_text(f"{HANDLERS}{text}\n")
    line = 3 + len(text.splitlines())
    with pytest.raises(BundleError, match=re.escape(f"{program}:{line}: {what}: ")):
        build([str(program)], Options(only_used=True))
    # With all that is public there is nothing to be seen.
    build([str(program)])


def test_what_hides_no_name_is_not_refused(tmp_path: Path) -> None:
    program = tmp_path / "main.py"
    program.write_text(
        f"{HANDLERS}globals()[kind]()\nprint(dir(client), type(client), getattr(client, 'status', 0))\n"
        "termios = __import__('termios')\ngetattr(termios, 'B%d' % 9600)\nre.compile('x')\n"
    )
    build([str(program)], Options(only_used=True))


@pytest.mark.needs_micropython
def test_handlers_that_are_set_by_computed_names_are_called_on_a_board(tmp_path: Path) -> None:
    script = tmp_path / "program" / "main.py"
    script.parent.mkdir()
    script.write_text(
        "from headwater.mqtt.client import Client\n"
        "class Line:\n"
        "    data = b'\\x20\\x02\\x00\\x00\\x30\\x04\\x00\\x01th'\n"
        "    def open(self): return self\n"
        "    def ticks_ms(self): return 0\n"
        "    def wait(self, ms): pass\n"
        "    def readinto(self, buf, n):\n"
        "        data, self.data = self.data, b''\n"
        "        buf[:len(data)] = data\n"
        "        return len(data) or None\n"
        "    def write(self, buf, at, n): return n\n"
        "    def close(self): pass\n"
        "client = Client(Line(), b'board')\n"
        "for kind in ('message', 'delivered'):\n"
        "    setattr(client, 'on_' + kind, lambda m, kind=kind: print(kind))\n"
        "client.connect()\nclient.poll()\n"
    )
    options = Options(only_used=True, texts=False)
    write(build([str(script)], options), tmp_path / "lib", options)
    assert run(script, tmp_path / "lib") == "message\n"


def test_what_a_program_makes_no_use_of_goes(tmp_path: Path) -> None:
    """A hook that nobody sets, a choice that nobody makes, a count that nobody reads: and what is there for them."""
    program = tmp_path / "main.py"
    plain = "from headwater.mqtt.client import Client\nclient = Client(x)\nclient.connect()\n"
    plain += "client.on_message = print\n"
    program.write_text(plain)
    bundle = build([str(program)], Options(only_used=True))
    assert {"sink", "on_delivered", "auto_ack", "strays", "_will"} <= set(bundle.settled)
    assert any(name.endswith("_NO_WILL") for name in bundle.dropped)
    assert "on_message" not in bundle.settled
    user = "headwater_mqtt_session__ClientSession(user)"
    for more, name in {
        "client.sink = x": "sink",
        "client.session.auto_ack = False": "auto_ack",
        "print(client.session.strays)": "strays",
        "client = Client(x, b'id', user=b'u')": user,
        "client = Client(x, **y)": user,
        "options = {'user': b'u'}": user,
        "from headwater.mqtt.session import ClientSession\nClientSession(b'id', 60, True, x)": user,
        "from headwater.mqtt.session import ClientSession\nClientSession(*x)": user,
        "client = Client(x, outbox=y)": "received",
    }.items():
        assert name in bundle.settled, more
        program.write_text(f"{plain}{more}\n")
        assert name not in build([str(program)], Options(only_used=True)).settled, more


def test_names_of_the_program_are_left_alone(tmp_path: Path) -> None:
    """It may override a private method, or have an attribute that a short name would hide."""
    program = tmp_path / "main.py"
    program.write_text(
        "from headwater.mqtt.client import Client\nfrom headwater.mqtt.session import ClientSession\n"
        "class Mine(ClientSession):\n    iter = 4\n    def _on_connack(self, p):\n        return self._stuck\n"
    )
    names = build([str(program)]).names
    assert "_on_connack" not in names
    assert "_stuck" not in names
    assert "_entry" in names
    assert "iter" not in [new for old, new in names.items() if not old.startswith("headwater_")]


@pytest.mark.needs_micropython
def test_documented_imports_work_on_a_board(tmp_path: Path) -> None:
    options = Options()
    write(
        build(["headwater.mqtt.client", "headwater.errors", "headwater.mqtt.session"], options),
        tmp_path / "lib",
    )
    script = tmp_path / "program" / "main.py"
    script.parent.mkdir()
    script.write_text(
        "from headwater.errors import E_WINDOW, HeadwaterError\n"
        "from headwater.mqtt.client import Client\n"
        "from headwater.mqtt.session import ClientSession\n"
        "from headwater import errors\n"
        "from headwater.mqtt import client\n"
        "print(E_WINDOW, errors.E_TOPIC, client.Client is Client, issubclass(HeadwaterError, Exception))\n"
        "class Nothing:\n    def open(self): raise OSError(5)\n    def ticks_ms(self): return 0\n"
        "client = Client(Nothing(), session=ClientSession(b'a', keep_alive=7))\n"
        "try:\n    client.flush(timeout_ms=0)\nexcept HeadwaterError as e:\n    print(e, e.code)\n"
        "print(client.begin_connect(), client.errno, client.session.keep_alive)\n"
    )
    assert run(script, tmp_path / "lib") == "-21 -1 True True\nstatus -22 -22\n-63 5 7\n"


@pytest.mark.needs_micropython
def test_line_numbers_are_those_of_the_source_beside(tmp_path: Path) -> None:
    options = Options(lines=True)
    write(build(["headwater.mqtt.client"], options), tmp_path / "lib", options)
    script = tmp_path / "program" / "main.py"
    script.parent.mkdir()
    script.write_text(
        "import sys\nfrom headwater.mqtt.client import Client\n"
        "try:\n    Client(None)\nexcept AttributeError as e:\n    sys.print_exception(e)\n"
    )
    where = [line for line in run(script, tmp_path / "lib").splitlines() if '"headwater"' in line][-1]
    number = int(where.split("line ")[1].split(",")[0])
    source = (tmp_path / "lib/source/headwater/__init__.py").read_text().splitlines()
    assert ".ticks_ms" in source[number - 1]


def test_command_tells_what_it_made(tmp_path: Path) -> None:
    def command(*words: str) -> "subprocess.CompletedProcess[str]":
        call = [sys.executable, "-m", "tools.components", *words]
        return subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    done = command("-v", "--bytes", "-o", str(tmp_path / "out"), "examples/device/uptime.py")
    assert done.returncode == 0, done.stderr
    assert "headwater/__init__.mpy" in done.stdout
    assert "headwater_board/tcp.mpy" in done.stdout
    assert "dropped: headwater_wire__get_u16" in done.stdout
    assert "  Client.connect\n" in done.stdout
    assert (tmp_path / "out" / "package.json").exists()
    bad = command("headwater.nothing")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("bundle: headwater.nothing is neither")


def test_every_byte_is_somebodys(tmp_path: Path) -> None:
    what = ["headwater.mqtt.client", "headwater.mqtt.keeper"]
    made = write(build(what), tmp_path)["headwater/__init__.mpy"].read_bytes()
    found = contents(made, build(what, Options(names=True)).sources["__init__"])
    # The head has the magic number, the version, two bytes more, and how many names and constants there are.
    assert len(made) - found.names - found.constants - sum(found.code.values()) in (6, 7, 8)
    for part in ("Client.publish", "Keeper.poll", "headwater_wire__put_varint"):
        assert 40 < found.code[part] < 400, part
    with pytest.raises(ValueError, match="functions in the file"):
        contents(made, "def f(): pass")
    with pytest.raises(ValueError, match=r"no \.mpy file"):
        contents(b"M\x05" + made[2:], "")


def test_every_module_of_the_core_can_be_bundled() -> None:
    graph = sizes.imports(mpy.SDK)
    for module in graph:
        build([module])


#: What says only how a node stands there.
HOW = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def test_trees_are_gone_through_as_ast_does() -> None:
    for path in mpy.SDK.rglob("*.py"):
        tree = ast.parse(path.read_text())
        whole = list(ast.walk(tree))
        assert list(walk(tree)) == [part for part in whole if not isinstance(part, HOW)], path
        for part in whole:
            found = [one for one in ast.iter_child_nodes(part) if not isinstance(one, HOW)]
            assert children(part) == found, ast.dump(part)


def test_trees_are_changed_as_ast_does() -> None:
    """A node for another, several for one, or none: in lists and alone."""

    def visit_expr(self: ast.NodeTransformer, node: ast.Expr) -> list[ast.stmt]:
        return [ast.Pass(), node]

    def visit_return(self: ast.NodeTransformer, node: ast.Return) -> None: ...

    def visit_name(self: ast.NodeTransformer, node: ast.Name) -> ast.expr | None:
        return None if node.id == "int" else ast.Constant(len(node.id))

    methods = {"visit_Expr": visit_expr, "visit_Return": visit_return, "visit_Name": visit_name}
    ours = type("Ours", (Quick, ast.NodeTransformer), methods)
    theirs = type("Theirs", (ast.NodeTransformer,), methods)
    for path in mpy.SDK.rglob("*.py"):
        made = [ast.dump(kind().visit(ast.parse(path.read_text()))) for kind in (ours, theirs)]
        assert made[0] == made[1], path
