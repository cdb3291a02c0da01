"""What ``machine`` and ``time`` have on ESP32 and RP2, over the supervisor of the virtual board.

The watchdog is the supervisor's: it kills the process that does not feed, whatever that process is doing. Deep sleep
ends the process, and the supervisor starts the next one.
"""

import time as _time

_MASK = (1 << 30) - 1
#: Seconds from 1970 to 2000, where ESP32's time starts (py/mpconfig.h, MICROPY_EPOCH_IS_2000; RP2's starts in 1970).
_Y2000 = 946684800
#: RP2 starts its clock at 2021-01-01 (ports/rp2/main.c).
_Y2021 = 1609459200
_RTC_MEMORY = 2048  # ports/esp32/mpconfigport.h, MICROPY_HW_RTC_USER_MEM_MAX
_RTC_HEAD = 10

_timers = []
_pumping = False


def pump(ms):
    """Pass time inside a blocking call, as the ports do, and run the timers' callbacks that are due.

    (extmod/modlwip.c and ports/esp32/modsocket.c handle pending events while they wait.)
    """
    global _pumping
    end = _time.ticks_add(_time.ticks_ms(), ms)
    while True:
        if _timers and not _pumping:
            _pumping = True
            try:
                for timer in _timers[:]:
                    timer._run()
            finally:
                _pumping = False
        left = _time.ticks_diff(end, _time.ticks_ms())
        if left <= 0:
            return
        _time.sleep_ms(min(left, 5) if _timers else left)


class Timer:
    """``machine.Timer``, soft: a callback runs within a call that waits (``time.sleep``, a socket, the watchdog).

    On a board it also runs between two byte codes of the program.
    """

    ONE_SHOT = 0
    PERIODIC = 1

    def __init__(self, id=-1, **settings):
        self._callback = None
        if settings:
            self.init(**settings)

    def init(self, *, mode=PERIODIC, period=-1, freq=-1, callback=None, hard=False, tick_hz=1000):
        self.deinit()
        self._period = int(1000 / freq) if freq > 0 else period * 1000 // tick_hz
        self._once = mode == Timer.ONE_SHOT
        self._callback = callback
        self._due = _time.ticks_add(_time.ticks_ms(), self._period)
        _timers.append(self)

    def deinit(self):
        if self in _timers:
            _timers.remove(self)

    def _run(self):
        if self._callback is None or _time.ticks_diff(_time.ticks_ms(), self._due) < 0:
            return
        self._due = _time.ticks_add(self._due, self._period)
        if self._once:
            self.deinit()
        self._callback(self)


class Esp32Timer(Timer):
    """Before MicroPython 1.27, ESP32 has no virtual timers (ports/esp32/machine_timer.c)."""

    def __init__(self, id, **settings):
        if not 0 <= id < 4:
            raise ValueError("invalid Timer number")
        super().__init__(id, **settings)


class Spi:
    """``machine.SPI``: a bus that carries nothing (ports/rp2/machine_spi.c: 0 and 1)."""

    _numbers = (0, 1)

    def __init__(self, id, baudrate=1000000, **settings):
        if id not in self._numbers:
            raise ValueError("SPI(%d) doesn't exist" % id)


class Esp32Spi(Spi):
    """ports/esp32/machine_hw_spi.c: 1 and, on most chips, 2."""

    _numbers = (1, 2)


class Pin:
    """``machine.Pin``: remembers its level."""

    IN = 0
    OUT = 1
    OPEN_DRAIN = 2
    PULL_UP = 1
    PULL_DOWN = 2
    IRQ_RISING = 1
    IRQ_FALLING = 2
    _levels = {}

    def __init__(self, id, mode=-1, pull=-1, *, value=None, **more):
        self.id = id
        if value is not None:
            self.value(value)

    def init(self, mode=-1, pull=-1, *, value=None, **more):
        if value is not None:
            self.value(value)

    def value(self, level=None):
        if level is None:
            return Pin._levels.get(self.id, 0)
        Pin._levels[self.id] = 1 if level else 0

    __call__ = value

    def on(self):
        self.value(1)

    def off(self):
        self.value(0)

    high = on
    low = off

    def toggle(self):
        self.value(1 - self.value())

    def irq(self, handler=None, trigger=0, **more):
        return None


class ADC:
    """``machine.ADC``: measures a quarter of the range."""

    CORE_TEMP = 4
    ATTN_11DB = 3

    def __init__(self, pin, **settings):
        self.pin = pin

    def read_u16(self):
        return 0x4000

    def read_uv(self):
        return 825000


class Chip:
    """Gives ``machine`` and ``time`` the names of ``port``.

    ``ask`` sends a request to the supervisor and does not return; ``tell`` sends one and returns. ``rtc`` is the file
    of the real-time clock, which the supervisor clears when the port would lose it; ``feeds`` that of the watchdog.
    """

    def __init__(self, port, ask, tell, rtc, feeds, is_radio_on):
        self.port = port
        self.ask = ask
        self.tell = tell
        self.is_radio_on = is_radio_on
        self._rtc = rtc
        self._feeds = feeds
        self._fed = bytearray(4)
        self._timeout = 0
        self._fed_at = 0
        chip = self

        class RTC:
            """``machine.RTC`` (ports/esp32/machine_rtc.c, ports/rp2/machine_rtc.c)."""

            def datetime(self, when=None):
                if when is None:
                    t = chip.gmtime(chip.time())
                    micros = chip.nanoseconds() // 1000 % 1000000 if port == "esp32" else 0
                    return (t[0], t[1], t[2], t[6], t[3], t[4], t[5], micros)
                chip.set_time((when[0], when[1], when[2], when[4], when[5], when[6], 0, 0))

        class Esp32Rtc(RTC):
            def init(self, when):
                chip.set_time((when[0], when[1], when[2], when[3], when[4], when[5], 0, 0))

            def memory(self, data=None):
                rtc.seek(_RTC_HEAD)
                if data is None:
                    size = rtc.read(2)
                    return rtc.read(size[0] | size[1] << 8) if len(size) == 2 else b""
                if len(data) > _RTC_MEMORY:
                    raise ValueError("buffer too long")
                rtc.write(bytes((len(data) & 255, len(data) >> 8)) + bytes(data))

        class WDT:
            """``machine.WDT``: cannot be stopped."""

            def __init__(self, id=0, timeout=5000):
                chip.start_watchdog(id, timeout)

            def feed(self):
                chip.feed()

        self.RTC = Esp32Rtc if port == "esp32" else RTC
        self.WDT = WDT
        rtc.seek(0)
        kept = rtc.read(_RTC_HEAD)
        if len(kept) == _RTC_HEAD and kept[0] == 1:
            self._offset = int.from_bytes(kept[1:], "little") - (1 << 71)
        else:
            self._set_offset((_Y2000 if port == "esp32" else _Y2021) * 1000000000 - _time.time_ns())

    # -- time ----------------------------------------------------------------------------------------------------------

    def nanoseconds(self):
        """Return the time since 1970."""
        return _time.time_ns() + self._offset

    def time(self):
        """Return the time in seconds since the port's epoch."""
        seconds = self.nanoseconds() // 1000000000
        return seconds - _Y2000 if self.port == "esp32" else seconds

    def gmtime(self, seconds=None):
        seconds = self.time() if seconds is None else seconds
        return _time.gmtime(seconds + _Y2000 if self.port == "esp32" else seconds)[:8]

    def mktime(self, t):
        seconds = _time.mktime((t[0], t[1], t[2], t[3], t[4], t[5], 0, 0, 0))
        return seconds - _Y2000 if self.port == "esp32" else seconds

    def set_time(self, t):
        """Set the clock to a UTC time."""
        seconds = _time.mktime((t[0], t[1], t[2], t[3], t[4], t[5], 0, 0, 0))
        self._set_offset(seconds * 1000000000 - _time.time_ns())

    def _set_offset(self, offset):
        self._offset = offset
        self._rtc.seek(0)
        self._rtc.write(b"\x01" + (offset + (1 << 71)).to_bytes(_RTC_HEAD - 1, "little"))

    def fill_time(self, names):
        """Replace the functions of ``time`` that read the clock or wait."""
        names.time = self.time
        names.time_ns = lambda: self.nanoseconds() - (_Y2000 * 1000000000 if self.port == "esp32" else 0)
        names.gmtime = names.localtime = self.gmtime
        names.mktime = self.mktime
        names.sleep_ms = pump
        names.sleep = lambda seconds: pump(int(seconds * 1000))

    # -- the watchdog --------------------------------------------------------------------------------------------------

    def start_watchdog(self, id, timeout):
        """Check the arguments (ports/esp32/machine_wdt.c, ports/rp2/machine_wdt.c) and start the supervisor's."""
        if id != 0:
            raise ValueError("WDT(%d) doesn't exist" % id if self.port == "rp2" else "")
        if self.port == "rp2" and timeout > 8388:
            raise ValueError("timeout exceeds 8388")
        if timeout <= 0:
            raise ValueError("WDT timeout too short")
        self._timeout = timeout
        self.feed()
        self.tell(b"W%d;" % timeout)

    def feed(self):
        """Feed the watchdog."""
        for i in range(4):
            self._fed[i] = self._fed[i] + 1 & 255
            if self._fed[i]:
                break
        self._fed_at = _time.ticks_ms()
        self._feeds.seek(0)
        self._feeds.write(self._fed)

    # -- sleep ---------------------------------------------------------------------------------------------------------

    def lightsleep(self, ms=None):
        """Sleep with the memory kept.

        ESP32 (ESP-IDF, sleep modes): the radio is powered down, so a connection does not survive; the watchdog's timer
        stands still. RP2 (ports/rp2/modmachine.c): returns at once while the WiFi chip has work pending, which it has
        while it is on; the watchdog counts on.
        """
        if self.port == "rp2":
            if ms is not None and ms >= (1 << 32) // 1000:
                raise ValueError("sleep too long")
            if self.is_radio_on():
                return
        end = None if ms is None else _time.ticks_add(_time.ticks_ms(), ms)
        while end is None or _time.ticks_diff(end, _time.ticks_ms()) > 0:
            if self.port == "esp32" and self._timeout:
                self.feed()
            _time.sleep_ms(10 if end is None else max(0, min(10, _time.ticks_diff(end, _time.ticks_ms()))))

    def deepsleep(self, ms=0):
        """End this program.

        ESP32 (esp_deep_sleep_start): only the RTC memory is kept, and the watchdog is off. RP2: ``lightsleep``, then
        ``reset``, so the watchdog counts on, and a chip whose WiFi is on resets at once.
        """
        if self.port == "rp2":
            if ms >= (1 << 32) // 1000:
                raise ValueError("sleep too long")
            if self.is_radio_on():
                ms = 1
            elif self._timeout:
                left = self._timeout - (_time.ticks_diff(_time.ticks_ms(), self._fed_at))
                ms = min(ms or left, max(left, 1))
        self.ask(b"D%d;" % ms)

    def fill_machine(self, machine, cause, woke):
        """Give ``machine`` the port's names."""
        machine.PWRON_RESET, machine.WDT_RESET = 1, 3
        if self.port == "esp32":
            machine.HARD_RESET, machine.DEEPSLEEP_RESET, machine.SOFT_RESET = 2, 4, 5
            machine.TIMER_WAKE = 4  # ESP_SLEEP_WAKEUP_TIMER
            machine.wake_reason = lambda: 4 if woke else 0
        machine.reset_cause = lambda: cause
        machine.RTC = self.RTC
        machine.WDT = self.WDT
        machine.Timer = Esp32Timer if self.port == "esp32" else Timer
        machine.Pin = Pin
        machine.ADC = ADC
        machine.SPI = Esp32Spi if self.port == "esp32" else Spi
        machine.lightsleep = self.lightsleep
        machine.deepsleep = self.deepsleep
