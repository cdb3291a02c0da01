"""A component does what its modules do, and is imported as they are; what cannot be built is refused.

That the whole core does so, the portable tests prove (``test_portable.py``), and the allocation proofs.
"""

import ast
import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from headwater_host.board.tracebacks import translate
from tests import built
from tests.rows import each_row
from tools import mpy, sizes
from tools.components import __main__ as command
from tools.components import names
from tools.components.build import NAMES, Built, build, compile_units, members, write
from tools.components.program import BundleError
from tools.components.table import ALL, COMPONENTS, UNITS
from tools.components.tree import Quick, children, walk
from tools.runtimes import RUNTIMES, run_unix
from tools.toolchain import ROOT

WHERE = [pytest.param(name, marks=getattr(pytest.mark, f"needs_{name}"), id=name) for name in RUNTIMES]
#: What is easily done wrong, each in a module of its own, and what it must print.
TRAPS = {
    "assigned together, without a tuple": (
        {
            "one": "class A:\n    def __init__(self):\n        self.x, self.y = 1, 2\n"
            "    def swap(self):\n        self.x, self.y = self.y, self.x\n        return self.x\n"
            "    def one(self):\n        (z,) = (self.y,)\n        return z\n"
        },
        "from headwater.one import A\nfrom micropython import heap_lock, heap_unlock\na = A()\nn = 0\nheap_lock()\n"
        "try:\n    n = a.swap()\nfinally:\n    heap_unlock()\nprint(n, a.x, a.y, a.one())\n",
    ),
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
client = Client(Line(), b"board", clean_start=False, slots=1)
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


MORE_REFUSED = {
    "def f():\n    return globals()": r"one\.py:2: globals\(\): names that the build may change",
    "def f(x, n):\n    setattr(x, n, 1)": r"one\.py:2: setattr\(x, n, 1\): names that",
    "def f(x, n):\n    return getattr(x, '_' + n)": r"one\.py:2: getattr.*: names that",
    "def f(x):\n    return x.__dict__": r"one\.py:2: x\.__dict__: names that",
    "def f(x):\n    return eval(x)": r"one\.py:2: eval\(x\): names that",
}


def lay(folder: Path, modules: dict[str, str]) -> Path:
    for name, text in {"__init__": "", **modules}.items():
        path = folder / "headwater" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@cache
def shortened() -> Built:
    """The units as users get them."""
    return build()


@pytest.fixture(scope="module")
def components(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """The files of each component, by their names below ``/lib``."""
    return built.components(tmp_path_factory.mktemp("components") / "built")


@pytest.fixture(scope="module")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import all of the core from, built."""
    return built.everything(tmp_path_factory.mktemp("lib") / "built")


@pytest.fixture(scope="module")
def connecting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules that CONNECT uses: they are built in a third of the time of all."""
    graph = sizes.imports(mpy.SDK)
    used = set(sizes.in_import_order(graph, re.findall(r"^from (\S+) import", CONNECT, re.MULTILINE)))
    used |= {name.rpartition(".")[0] for name in used} - {""}
    files = [mpy.SDK / f"{name.replace('.', '/')}{end}.py" for name in used for end in ("", "/__init__")]
    texts = {
        str(path.relative_to(mpy.SDK / "headwater"))[:-3]: path.read_text()
        for path in files
        if path.is_file()
    }
    return lay(tmp_path_factory.mktemp("sdk"), texts)


def one_unit(modules: dict[str, str]) -> Mapping[str, Sequence[str]]:
    """All modules in one file."""
    names = [name.replace("/", ".").removesuffix(".__init__") for name in modules]
    return {"headwater": ("headwater", *(f"headwater.{name}" for name in names))}


def run(script: Path, path: Path) -> str:
    done = run_unix(script, path=[path])
    assert done.returncode == 0, done.stdout
    return done.stdout


def program(folder: Path, text: str) -> Path:
    script = folder / "program" / "main.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(text)
    return script


@pytest.mark.needs_micropython
@pytest.mark.parametrize("form", ["one file", "a file each", "one file, names kept"])
@pytest.mark.parametrize("trap", TRAPS)
def test_a_unit_does_what_its_modules_do(trap: str, form: str, tmp_path: Path) -> None:
    modules, text = TRAPS[trap]
    root = lay(tmp_path / "plain", modules)
    script = program(tmp_path, text)
    expected = run(script, root)
    table = {} if form == "a file each" else one_unit(modules)
    if table and trap == "one name in two modules":
        with pytest.raises(BundleError, match="have one name"):
            build(root, table=table)
        return
    compile_units(build(root, short="kept" not in form, table=table), tmp_path / "built")
    assert run(script, tmp_path / "built" / "lib") == expected


@pytest.mark.needs_micropython
@each_row("seed", range(8))
def test_it_does_not_matter_which_names_are_given(
    seed: int, connecting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that hides another may do so by chance only: here are eight chances."""
    script = program(tmp_path, CONNECT)
    shuffled = random.Random(seed).sample(names.NUMBERED, len(names.NUMBERED))
    monkeypatch.setattr(names, "NUMBERED", shuffled)
    compile_units(build(connecting), tmp_path / "built")
    assert run(script, tmp_path / "built" / "lib") == "True 1 -21\n"


@pytest.mark.parametrize("text", [*REFUSED, *MORE_REFUSED])
def test_what_cannot_be_built_is_refused_with_its_place(text: str, tmp_path: Path) -> None:
    root = lay(tmp_path, {"one": text, "two": ""})
    with pytest.raises(BundleError, match={**REFUSED, **MORE_REFUSED}[text]):
        build(root)


def test_units_that_need_each_other_are_refused(tmp_path: Path) -> None:
    modules = {
        "mqtt/__init__": "",
        "mqtt/one": "def f():\n    return 1\n",
        "two": "from headwater.mqtt.one import f\ndef g():\n    return f()\n",
        "mqtt/three": "from headwater.two import g\ndef h():\n    return g()\n",
    }
    table = {"headwater.mqtt": ("headwater.mqtt", "headwater.mqtt.one", "headwater.mqtt.three")}
    with pytest.raises(BundleError, match="put them into one unit"):
        build(lay(tmp_path, modules), table=table)


def test_a_local_that_would_hide_a_global_is_refused(tmp_path: Path) -> None:
    modules = {
        "one": "def send(n):\n    return n + 1\n",
        "two": "from headwater import one\ndef main(send):\n    return one.send(send)\n",
    }
    with pytest.raises(BundleError, match=r"main has a local called as headwater\.one\.send is"):
        build(lay(tmp_path, modules))


def test_nothing_else_is_overwritten(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    monkeypatch.setattr(command, "build", lambda short: shortened())
    monkeypatch.setattr(sys, "argv", ["components", "-o", str(tmp_path)])
    assert command.main() == 1
    assert re.fullmatch(r"components: .* is not empty, .*\n", capsys.readouterr().err)
    assert mine.read_text() == "mine"


def test_names_with_a_number_have_one(tmp_path: Path) -> None:
    """The compiler writes such a name as its number: no letter of it is in the file."""
    source = tmp_path / "names.py"
    source.write_text("\n".join(f"x.{name}" for name in names.NUMBERED))
    mpy.compile_file(source, tmp_path / "names.mpy", "n", "-O3")
    found = (tmp_path / "names.mpy").read_bytes()
    assert [name for name in names.NUMBERED if name.encode() in found] == []
    assert len(set(names.NUMBERED)) == len(names.NUMBERED)


def test_public_names_stay_and_private_ones_go() -> None:
    units = shortened()
    text = units.sources["headwater.mqtt"]
    for kept in (
        "class Client(",
        "def publish(self, topic, payload, qos=0, retain=False",
        "outbox_size=1024",
        "self.on_message",
        "modules['headwater.mqtt.client']",
    ):
        assert kept in text, kept
    for gone in ('"""', "Transport", "E_WINDOW", "const(", "self._request_ids"):
        assert gone not in text, gone
    assert "E_WINDOW = -21\n" in units.sources["headwater.errors"]
    assert len(units.names) > 30
    assert all(old.startswith("_") for olds in units.names.values() for old in olds)


def test_every_module_is_in_one_unit_and_in_the_component_of_everything() -> None:
    units = shortened()
    assert set(units.unit_of) == set(sizes.imports(mpy.SDK))
    assert {name for names in UNITS.values() for name in names} <= set(units.unit_of)
    core, ports = members(units, ALL)
    assert set(core) == set(units.sources)
    assert len(ports) == len(list(mpy.modules(mpy.BOARD_PORT)))


def test_the_page_lists_every_component() -> None:
    page = (ROOT / "docs" / "sizes.md").read_text()
    assert re.findall(r"^\| `(headwater[\w-]*)` \|", page, re.MULTILINE) == list(COMPONENTS)


def test_components_share_their_common_files(tmp_path: Path) -> None:
    (tmp_path / NAMES).write_text("of an earlier build")
    (tmp_path / "stale").touch()
    made = write(shortened(), tmp_path)
    assert not (tmp_path / "stale").exists()
    for component, files in made.items():
        package = json.loads((tmp_path / f"{component}.json").read_text())
        assert package["urls"] == [[name, f"lib/{name}"] for name in sorted(files)]
        assert all((tmp_path / path).is_file() for _, path in package["urls"])
        if component != ALL:
            assert files.keys() & {"headwater/__init__.mpy", "headwater_board/__init__.mpy"}
            assert len(files) < len(made[ALL]) / 2, component


@pytest.mark.needs_micropython
@each_row("component", COMPONENTS)
def test_a_component_is_complete(
    component: str, components: dict[str, dict[str, Path]], tmp_path: Path
) -> None:
    """Every module of a component can be imported where nothing else is installed."""
    lib = tmp_path / "lib"
    for name, path in components[component].items():
        (lib / name).parent.mkdir(parents=True, exist_ok=True)
        (lib / name).write_bytes(path.read_bytes())
    wanted = COMPONENTS[component] or tuple(sizes.imports(mpy.SDK))
    text = "".join(f"__import__({name!r})\n" for name in sorted(wanted) if name != "headwater.types")
    script = program(tmp_path, text + "print('all')\n")
    # A module of the firmware, beside the script.
    (script.parent / "network.py").write_text("")
    assert run(script, lib) == "all\n"


@pytest.mark.needs_micropython
def test_documented_imports_work_on_a_board(lib: Path, tmp_path: Path) -> None:
    script = program(
        tmp_path,
        "from headwater.errors import E_WINDOW, HeadwaterError\n"
        "from headwater.mqtt.client import Client\n"
        "from headwater.mqtt.session import ClientSession\n"
        "from headwater import errors\n"
        "from headwater.mqtt import client\n"
        "import headwater.mqtt.client as c\n"
        "print(E_WINDOW, errors.E_TOPIC, client.Client is Client, c is client, issubclass(HeadwaterError, Exception))\n"
        "class Nothing:\n    def open(self): raise OSError(5)\n    def ticks_ms(self): return 0\n"
        "client = Client(Nothing(), session=ClientSession(b'a', keep_alive=7))\n"
        "try:\n    client.flush(timeout_ms=0)\nexcept HeadwaterError as e:\n    print(e, e.code)\n"
        "print(client.begin_connect(), client.errno, client.session.keep_alive)\n",
    )
    assert run(script, lib) == "-21 -1 True True True\nE_OFFLINE -22\n-63 5 7\n"


@pytest.mark.needs_micropython
def test_numbers_are_loaded_only_by_a_program_that_names_them(lib: Path, tmp_path: Path) -> None:
    text = "import sys\nfrom headwater.mqtt.client import Client\nprint(sorted(sys.modules))\n"
    loaded = run(program(tmp_path, text), lib)
    for name in ("headwater.errors", "headwater.mqtt.spec", "headwater.mqtt.properties"):
        assert f"'{name}'" not in loaded, loaded


@pytest.mark.needs_micropython
def test_a_traceback_is_translated_to_the_sources(tmp_path: Path) -> None:
    compile_units(shortened(), tmp_path / "built")
    script = program(
        tmp_path,
        "import sys\nfrom headwater.mqtt.client import Client\n"
        "try:\n    Client(None)\nexcept AttributeError as e:\n    sys.print_exception(e)\n",
    )
    said = run(script, tmp_path / "built" / "lib")
    known = json.loads((tmp_path / "built" / "names.json").read_text())
    frames = [line for line in translate(said, known) if '"headwater/' in line]
    found = re.fullmatch(r'  File "(.*)", line (\d+), in (.*)', frames[-1])
    assert found, said
    assert ".ticks_ms" in (mpy.SDK / found[1]).read_text().splitlines()[int(found[2]) - 1]
    assert found[3].endswith(".__init__")
    assert "\n".join(translate('no frame\n  File "main.py", line 3, in f', known)).endswith("in f")


def test_every_line_is_known() -> None:
    """The lines that are named begin statements of the sources."""
    units = shortened()
    for unit, lines in units.lines.items():
        text = units.sources[unit].splitlines()
        for line, source, old, _ in lines:
            assert text[line - 1].strip()
            assert (mpy.SDK / source).read_text().splitlines()[old - 1].strip() or old == 0


def test_command_writes_everything(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "tools.components", "-o", str(tmp_path / "out")]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for component in COMPONENTS:
        assert f"  {component}: " in done.stdout
        for suffix in ("json", "manifest.py", "romfs"):
            assert (tmp_path / "out" / f"{component}.{suffix}").stat().st_size > 50
        manifest = (tmp_path / "out" / f"{component}.manifest.py").read_text()
        included = re.findall(r'"(\S+\.py)"', manifest)
        assert included
        assert all((tmp_path / "out" / one).is_file() for one in included)


@pytest.mark.parametrize("where", WHERE)
def test_the_keeper_of_fmq_can_be_imported_with_little_memory(where: str, lib: Path, tmp_path: Path) -> None:
    """As modules this failed on a board with 137 KB free: the heap was fragmented."""
    script = program(tmp_path, "import headwater.fmq.keeper\nprint('imported')\n")
    heap = (137 << 10) * (2 if where == "micropython" else 1)
    done = RUNTIMES[where](script, path=[lib], heap=heap)
    assert done.stdout == "imported\n", done.stdout


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
