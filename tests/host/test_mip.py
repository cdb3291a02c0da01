"""mip puts components on a board: from a checkout, from an HTTP index, and from GitHub.

mpremote and MicroPython's own mip are the real ones; servers on this machine stand for the index and for GitHub.
"""

import contextlib
import functools
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headwater import __version__
from tests import built
from tests.certificates import make
from tools import dist
from tools.toolchain import ROOT
from tools.virtual_board import VirtualBoard

pytestmark = [pytest.mark.needs_micropython, pytest.mark.timeout(400)]
HOST = "127.0.0.1"
#: The host of ``github:``, as mpremote writes it.
GITHUB = "raw.githubusercontent.com"
IMPORTS = """
import {dialer}
from headwater.{protocol}.client import Client
print(Client.__name__)
"""


class Release:
    """The components with their index, and what each component has."""

    def __init__(self, folder: Path) -> None:
        self.components = folder / "components"
        self.index = folder / "mip"
        self.files = built.components(self.components)
        dist.write_index(self.components, self.index)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return Release(tmp_path_factory.mktemp("mip"))


@pytest.fixture
def board() -> Iterator[VirtualBoard]:
    with VirtualBoard(heap="256K") as one:
        yield one


def mpremote(board: VirtualBoard, *words: object, **environment: object) -> str:
    command = [sys.executable, "-m", "mpremote", "connect", board.port, *map(str, words)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(said: str) -> set[str]:
    """The files that mip says it has written below ``/lib``."""
    return set(re.findall(r"^Installing: /lib/(\S+)", said, re.MULTILINE))


def check_import(board: VirtualBoard, protocol: str, dialer: str = "headwater_board.tcp") -> None:
    code = IMPORTS.format(protocol=protocol, dialer=dialer)
    assert mpremote(board, "exec", code).split() == ["Client"]


class Files(SimpleHTTPRequestHandler):
    """Serves a folder; as a proxy it is the host that a client asks it to connect to."""

    #: For TLS, when a client says CONNECT.
    context: ssl.SSLContext | None = None

    def log_message(self, format: str, *args: object) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]

    def do_CONNECT(self) -> None:
        assert self.context is not None
        self.send_response(200)
        self.end_headers()
        self.request = self.context.wrap_socket(self.request, server_side=True)
        self.setup()
        self.close_connection = False


@contextlib.contextmanager
def serve(folder: Path, handler: type[Files] = Files) -> Iterator[ThreadingHTTPServer]:
    """Serve a folder; the server's ``asked`` has the paths that clients asked for."""
    with ThreadingHTTPServer((HOST, 0), functools.partial(handler, directory=folder)) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_from_a_checkout(board: VirtualBoard, release: Release) -> None:
    said = "".join(
        mpremote(board, "mip", "install", release.components / f"headwater-{name}.json")
        for name in ("mqtt", "fmq")
    )
    mqtt, fmq = (set(release.files[f"headwater-{name}"]) for name in ("mqtt", "fmq"))
    # What the two share is one file.
    assert len(mqtt & fmq) >= 3
    assert installed(said) == mqtt | fmq
    check_import(board, "fmq", "headwater_board.tls")
    check_import(board, "mqtt")


def test_from_an_index(board: VirtualBoard, release: Release) -> None:
    with serve(release.index) as server:
        install = ("mip", "install", "--index", f"http://{HOST}:{server.server_port}")
        assert installed(mpremote(board, *install, "headwater-mqtt")) == set(release.files["headwater-mqtt"])
        check_import(board, "mqtt")
        # Files that are there and unchanged are not sent again, those of another component neither.
        said = mpremote(board, *install, f"headwater-mqtt5@{__version__}")
        more = set(release.files["headwater-mqtt5"]) - set(release.files["headwater-mqtt"])
        assert more
        assert installed(said) == more
        board.fs_path("/lib/headwater/__init__.mpy").write_bytes(b"damaged")
        assert installed(mpremote(board, *install, "headwater-mqtt")) == {"headwater/__init__.mpy"}


def test_sources_from_an_index(board: VirtualBoard, release: Release) -> None:
    """For a MicroPython whose .mpy format has another version."""
    with serve(release.index) as server:
        install = ("mip", "install", "--no-mpy", "--index", f"http://{HOST}:{server.server_port}")
        said = mpremote(board, *install, "headwater-mqtt")
    assert installed(said) == {f"{name[:-4]}.py" for name in release.files["headwater-mqtt"]}
    check_import(board, "mqtt")


def test_a_board_installs_from_an_index_by_itself(board: VirtualBoard, release: Release) -> None:
    with serve(release.index) as server:
        index = f"http://{HOST}:{server.server_port}"
        said = mpremote(board, "exec", f"import mip; mip.install('headwater-mqtt', index='{index}')")
    assert said.rstrip().endswith("Done")
    for name, path in release.files["headwater-mqtt"].items():
        assert board.fs_path(f"/lib/{name}").read_bytes() == path.read_bytes()
    check_import(board, "mqtt")


def test_from_github(board: VirtualBoard, release: Release, tmp_path: Path) -> None:
    """The branch ``components`` of a repository has what ``out/components`` has."""
    branch = tmp_path / "www" / "example" / "headwater" / "components"
    branch.parent.mkdir(parents=True)
    branch.symlink_to(release.components)
    certificate = make(tmp_path, "github", (GITHUB,))

    class GitHub(Files):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    GitHub.context.load_cert_chain(certificate.cert, certificate.key)
    with serve(tmp_path / "www", GitHub) as server:
        said = mpremote(
            board,
            *("mip", "install", "github:example/headwater/headwater-mqtt.json@components"),
            https_proxy=f"http://{HOST}:{server.server_port}",
            SSL_CERT_FILE=certificate.cert,
        )
        asked: list[str] = server.asked  # type: ignore[attr-defined]
    assert asked.count(f"{GITHUB}:443") == len(release.files["headwater-mqtt"]) + 1
    assert "/example/headwater/components/headwater-mqtt.json" in asked
    assert installed(said) == set(release.files["headwater-mqtt"])
    check_import(board, "mqtt")


#: A partition that MicroPython maps into memory, in the RAM of a virtual board: the requests of ``vfs.rom_ioctl`` as
#: ``docs/library/vfs.rst`` of MicroPython has them, and what the firmware does at the start with a valid image.
ROM = """
import sys, vfs
rom = bytearray(b"\\xff" * 65536)
try:
    with open("/partition", "rb") as file:
        file.readinto(rom)
except OSError:
    pass

def rom_ioctl(request, number=0, offset=0, data=None):
    if request == 1:
        return 1
    if request == 2:
        return memoryview(rom)
    if request == 3:
        return 4
    if request == 4:
        rom[offset : offset + len(data)] = data
    if request == 5:
        with open("/partition", "wb") as file:
            file.write(rom)
    return 4096 if request == 6 else 0

class Vfs:
    pass

module = Vfs()
for name in dir(vfs):
    if not name.startswith("__"):
        setattr(module, name, getattr(vfs, name))
module.rom_ioctl = rom_ioctl
sys.modules["vfs"] = module
try:
    vfs.mount(vfs.VfsRom(memoryview(rom)), "/rom")
    sys.path[2:2] = ["/rom", "/rom/lib"]
except OSError:
    pass
"""


def test_a_romfs_image_is_deployed_and_imported(release: Release) -> None:
    with VirtualBoard(heap="512K", files={"boot.py": ROM}) as board:
        assert "Not a valid ROMFS" in mpremote(board, "romfs", "query")
        image = release.components / "headwater-mqtt.romfs"
        said = mpremote(board, "romfs", "deploy", image)
        assert said.endswith("ROMFS image deployed\n"), said
        board.reset()
        assert "ROMFS image size: " in mpremote(board, "romfs", "query")
        check_import(board, "mqtt")
        where = mpremote(board, "exec", "import headwater; print(headwater.__file__)")
        assert where.strip() == "/rom/lib/headwater/__init__.mpy"


def test_a_firmware_without_romfs_says_so(board: VirtualBoard, release: Release) -> None:
    assert "ROMFS is not enabled" in mpremote(board, "romfs", "query")
