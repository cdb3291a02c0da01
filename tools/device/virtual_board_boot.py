"""Prepare a virtual board before its first prompt, as a real board's firmware does.

`tools.virtual_board` makes MicroPython's unix build call `start` (with `-i -c`, so that the prompt follows). It
gives the process its own root file system and the names of `machine`, and runs `boot.py` and `main.py`.
"""

import io
import os
import select
import sys
import termios

import machine as _unix_machine
import micropython as _unix_micropython
import vfs

ECHONL = 0x40
LFLAG = 3
GET_FILENO = 10
EINVAL = 22
PAGE = 256


class Cut:
    """Cuts the power within a program or erase operation, counted from 1 (0: never)."""

    def __init__(self, lose_power):
        self.at = 0
        self.lose_power = lose_power

    def now(self):
        if self.at:
            self.at -= 1
            return self.at == 0
        return False


class Flash:
    """NOR flash in a file, for littlefs. Erasing sets bits, programming clears them."""

    def __init__(self, path, blocks, block_size, cut):
        self.file = open(path, "r+b")
        self.blocks = blocks
        self.block_size = block_size
        self.cut = cut
        self.erased = b"\xff" * PAGE

    def read(self, at, buf):
        self.file.seek(at)
        self.file.readinto(buf)

    def write(self, at, buf):
        self.file.seek(at)
        if self.cut.now():
            self.file.write(buf, len(buf) // 2)
            self.cut.lose_power()
        self.file.write(buf)

    def erase(self, at, size):
        cut = self.cut.now()
        self.file.seek(at)
        for _ in range((size // 2 if cut else size) // PAGE):
            self.file.write(self.erased)
        if cut:
            self.cut.lose_power()

    def readblocks(self, block, buf, offset=0):
        self.read(block * self.block_size + offset, buf)

    def writeblocks(self, block, buf, offset=0):
        self.write(block * self.block_size + offset, buf)

    def ioctl(self, op, arg):
        if op == 4:
            return self.blocks
        if op == 5:
            return self.block_size
        if op == 6:
            self.erase(arg * self.block_size, self.block_size)
        return 0


class UART(io.IOBase):
    """`machine.UART` over an inherited descriptor, non-blocking. Baud rates have no effect."""

    fds = ()  # of UART 0, 1, ...

    def __init__(self, number, baudrate=115200, **settings):
        if not 0 <= number < len(UART.fds):
            raise ValueError(f"UART({number}) doesn't exist")
        self.fd = UART.fds[number]
        file = open(self.fd, "r+b")
        self.read = file.read
        self.readinto = file.readinto
        self.readline = file.readline
        self.write = file.write
        self.poller = select.poll()
        self.poller.register(self, select.POLLIN)

    def init(self, baudrate=115200, **settings):
        """Accept settings, which have no effect."""

    def deinit(self):
        """Leave the line open."""

    def any(self):
        """Return 1 if bytes are available, else 0 (a real board returns their number)."""
        for _ in self.poller.ipoll(0):  # poll would allocate a list
            return 1
        return 0

    def flush(self):
        """Return at once; written bytes are already on the line."""

    def txdone(self):
        return True

    def ioctl(self, op, arg):
        return self.fd if op == GET_FILENO else -EINVAL  # the only request that select makes


class Names:
    """A module with more names that replaces a built-in one in `sys.modules`."""

    def __init__(self, name, module):
        self.__name__ = name
        for known in dir(module):
            if not known.startswith("__"):
                setattr(self, known, getattr(module, known))


def _supervisor(pipe):
    """Return a function that sends one request to the supervisor and waits to be killed."""

    def ask(what):
        pipe.write(what)
        while True:
            try:
                select.poll().poll(60000)
            except KeyboardInterrupt:
                pass

    return ask


def _kbd_intr(char):
    """Set which byte interrupts: 3 (ctrl-C) or none. The supervisor reads this flag before it sends the signal.

    (After the unix build's own `kbd_intr(-1)`, ctrl-C kills the process.)
    """
    settings = termios.tcgetattr(0)
    settings[LFLAG] = settings[LFLAG] & ~ECHONL if char == 3 else settings[LFLAG] | ECHONL
    termios.tcsetattr(0, termios.TCSANOW, settings)


def _file_system(cfg, cut, host_dirs):
    if "flash" in cfg:
        path, blocks, block_size, cut_at = cfg["flash"]
        flash = Flash(path, blocks, block_size, cut)
        try:
            system = vfs.VfsLfs2(flash, progsize=PAGE)
        except OSError:
            vfs.VfsLfs2.mkfs(flash, progsize=PAGE)
            system = vfs.VfsLfs2(flash, progsize=PAGE)
        cut.at = cut_at
    else:
        system = vfs.VfsPosix(cfg["root"])
    seen = [(vfs.VfsPosix(source), target) for target, source in host_dirs]
    vfs.umount("/")
    vfs.mount(system, "/")
    for host, target in seen:
        vfs.mount(host, target, readonly=True)
    os.chdir("/")


def _names(cfg, ask):
    machine = Names("machine", _unix_machine)
    if not cfg.get("port"):
        machine.PWRON_RESET, machine.HARD_RESET, machine.WDT_RESET = 1, 2, 3
        machine.DEEPSLEEP_RESET, machine.SOFT_RESET = 4, 5
    cause = cfg["cause"]
    unique_id = cfg["id"]
    machine.reset_cause = lambda: cause
    machine.unique_id = lambda: unique_id
    machine.freq = lambda *hertz: None if hertz else 125000000
    machine.reset = lambda: ask(b"R")
    UART.fds = cfg["uarts"]
    machine.UART = UART
    sys.modules["machine"] = machine
    interrupts = Names("micropython", _unix_micropython)
    interrupts.kbd_intr = _kbd_intr
    sys.modules["micropython"] = interrupts
    return machine


def _prepare_port(cfg, pipe, ask, cut):
    """Import the stand-ins of a port and open their files, before the host's files go out of reach.

    Returns what gives the port's names to `machine` (see `_names`), `sys` and `time`.
    """
    import time

    from standins import chip, network, radio
    from standins import socket as board_socket

    port, files = cfg["port"], cfg["port_files"]
    station = network.install(port, radio.FileAir(open(files + "/air", "r+b")), open(files + "/radio", "r+b"))
    board_socket.install(port)
    made = chip.Chip(
        port,
        ask,
        pipe.write,
        open(files + "/rtc", "r+b"),
        open(files + "/feeds", "r+b"),
        lambda: station.active,
    )
    clock = Names("time", time)
    made.fill_time(clock)
    modules = {
        "network": network,
        "socket": board_socket,
        "usocket": board_socket,
        "time": clock,
        "utime": clock,
    }
    if port == "esp32":
        from standins import esp32

        flash = Flash(files + "/partitions", 1024, 4096, cut)
        esp32.install(flash, open(files + "/otadata", "r+b"), cfg["ota"], cfg["hard"])
        modules["esp32"] = esp32
    else:
        from standins import rp2

        modules["rp2"] = modules["_rp2"] = rp2
    system = Names("sys", sys)
    system.platform = port
    modules["sys"] = system

    def use(machine):
        made.fill_machine(machine, cfg["cause"], cfg["woke"])
        sys.modules.update(modules)

    return use


def _run(name, names):
    """Run one start-up script as the firmware does: in `__main__`; an exception ends only the script."""
    try:
        with open(name) as script:
            source = script.read()
    except OSError:
        return
    names["__file__"] = name
    try:
        exec(compile(source, name, "exec"), names)
    except SystemExit:
        raise
    except BaseException as error:
        sys.print_exception(error)


def copy_in(cfg, source):
    """Copy the tree at `source`, a directory of the host, to the board's file system."""
    _file_system(cfg, Cut(None), [("/host", source)])
    _copy_tree("/host", "")


def _copy_tree(source, target):
    for entry in os.ilistdir(source):
        a, b = source + "/" + entry[0], target + "/" + entry[0]
        if entry[1] & 0x4000:
            try:
                os.stat(b)
            except OSError:
                os.mkdir(b)
            _copy_tree(a, b)
        else:
            with open(a, "rb") as data, open(b, "wb") as copy:
                copy.write(data.read())


def copy_out(cfg, target, name):
    """Copy the board's file `name` to `file` in `target`, a directory of the host."""
    copy = open(target + "/file", "wb")
    _file_system(cfg, Cut(None), [])
    with open(name if name[:1] == "/" else "/" + name, "rb") as data:
        copy.write(data.read())
    copy.close()


def start(cfg, names):
    """Turn this process into a board and run its start-up scripts in `names`, the globals of `__main__`.

    `cfg` has `control` (descriptor of the pipe to the supervisor), `root` or `flash` (path, blocks, block size,
    operation to cut at), `host_dirs` (pairs of mount point and directory), `uarts` (descriptors), `cause` and `id`
    (for `machine`), `run_main`, and two marks to print: `ready` and `done`. With a `port` ("esp32" or "rp2")
    also `port_files` (directory of the stand-ins' files), `ota`, `hard` and `woke` (from deep sleep).
    """
    pipe = open(cfg["control"], "wb")
    ask = _supervisor(pipe)
    cut = Cut(lambda: ask(b"C"))
    use_port = _prepare_port(cfg, pipe, ask, cut) if cfg.get("port") else None
    sys.path[:] = ["", ".frozen", "/lib"]
    _file_system(cfg, cut, cfg["host_dirs"])
    machine = _names(cfg, ask)
    if use_port:
        use_port(machine)
    sys.modules.pop(__name__)
    sys.stdout.write(cfg["ready"])
    _run("boot.py", names)
    if cfg["run_main"]:
        _run("main.py", names)
    sys.stdout.write(cfg["done"])
