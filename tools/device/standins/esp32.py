"""``esp32`` of ESP32 firmware: partitions, and the boot loader's choice between them.

Sources: ports/esp32/esp32_partition.c, partitions-4MiBplus.csv, partitions-4MiB-ota.csv, and ESP-IDF's "App rollback"
(sdkconfig.base: CONFIG_BOOTLOADER_APP_ROLLBACK_ENABLE). Every firmware of the virtual board is the same MicroPython;
only the name of the running partition changes.
"""

import json

_PAGE = 4096
#: (label, type, subtype, offset, size). Generic builds have one application partition and cannot update themselves.
_PLAIN = (
    ("nvs", 1, 2, 0x9000, 0x6000),
    ("phy_init", 1, 1, 0xF000, 0x1000),
    ("factory", 0, 0, 0x10000, 0x1F0000),
    ("vfs", 1, 0x81, 0x200000, 0x200000),
)
_OTA = (
    ("nvs", 1, 2, 0x9000, 0x4000),
    ("otadata", 1, 0, 0xD000, 0x2000),
    ("phy_init", 1, 1, 0xF000, 0x1000),
    ("ota_0", 0, 0x10, 0x10000, 0x180000),
    ("ota_1", 0, 0x11, 0x190000, 0x180000),
    ("vfs", 1, 0x81, 0x310000, 0xF0000),
)
# esp_ota_img_states_t
_NEW = 0
_PENDING = 1
_VALID = 2
_ABORTED = 4
_IMAGE_MAGIC = 0xE9  # the first byte of an ESP32 image, all that ``set_boot`` checks here

_table = _PLAIN
_flash = None
_data = None


def install(flash, file, ota, hard):
    """Use ``flash`` for the partitions' bytes; after a ``hard`` reset act as the boot loader."""
    global _table, _flash, _data
    _table = _OTA if ota else _PLAIN
    _flash = flash
    file.seek(0)
    line = file.readline()
    first = "ota_0" if ota else "factory"
    _data = json.loads(line) if line else {"boot": first, "running": first, "before": first, "state": _VALID}
    _data["file"] = file
    if hard and ota:
        # A new image is tried once; unless it has declared itself valid by the next reset, the old one returns.
        if _data["state"] == _PENDING:
            _data.update(boot=_data["before"], state=_ABORTED)
        elif _data["state"] == _NEW:
            _data["state"] = _PENDING
        _data["running"] = _data["boot"]
        _save()


def _save():
    file = _data["file"]
    file.seek(0)
    file.write(json.dumps({name: _data[name] for name in ("boot", "running", "before", "state")}) + "\n")


class Partition:
    """``esp32.Partition``."""

    BOOT = 0
    RUNNING = 1
    TYPE_APP = 0
    TYPE_DATA = 1

    def __init__(self, id, block_size=_PAGE):
        label = id if isinstance(id, str) else _data["running" if id == Partition.RUNNING else "boot"]
        rows = [row for row in _table if row[0] == label]
        if not rows:
            raise OSError(2)
        self._row = rows[0]
        self._block = block_size

    @staticmethod
    def find(type=TYPE_APP, subtype=0xFF, label=None, block_size=_PAGE):
        return [
            Partition(row[0], block_size)
            for row in _table
            if row[1] == type and subtype in (0xFF, row[2]) and label in (None, row[0])
        ]

    def info(self):
        label, kind, subtype, offset, size = self._row
        return (kind, subtype, offset, size, label, False)

    def readblocks(self, block, buf, offset=0):
        self._check(block, buf, offset)
        _flash.read(self._row[3] + block * self._block + offset, buf)

    def writeblocks(self, block, buf, offset=None):
        """Without ``offset`` the blocks are erased first; blocks below 4096 bytes keep their neighbours."""
        self._check(block, buf, offset or 0)
        at = self._row[3] + block * self._block + (offset or 0)
        if offset is None:
            first = at - at % _PAGE
            last = at + len(buf) + -(at + len(buf)) % _PAGE
            page = bytearray(last - first)
            _flash.read(first, page)
            page[at - first : at - first + len(buf)] = buf
            for erased in range(first, last, _PAGE):
                _flash.erase(erased, _PAGE)
            _flash.write(first, page)
        else:
            _flash.write(at, buf)

    def ioctl(self, command, argument):
        if command in (1, 2, 3):
            return 0
        if command == 4:
            return self._row[4] // self._block
        if command == 5:
            return self._block
        if command == 6:
            if self._block != _PAGE:
                return -22
            _flash.erase(self._row[3] + argument * _PAGE, _PAGE)
            return 0
        return None

    def set_boot(self):
        """Check the image and boot it at the next reset: ESP_ERR_OTA_VALIDATE_FAILED is 0x1503."""
        head = bytearray(1)
        _flash.read(self._row[3], head)
        label = self._row[0]
        if self._row[1] != 0 or (label != _data["running"] and head[0] != _IMAGE_MAGIC):
            raise OSError(-0x1503, "ESP_ERR_OTA_VALIDATE_FAILED")
        if not _has_ota():
            raise OSError(-0x105, "ESP_ERR_NOT_FOUND")
        _data.update(boot=label, before=_data["running"], state=_VALID if label == _data["running"] else _NEW)
        _save()

    def get_next_update(self):
        """The other OTA partition; OSError(ENOENT) where the firmware has none."""
        if not _has_ota():
            raise OSError(2)
        return Partition("ota_1" if self._row[0] == "ota_0" else "ota_0")

    @classmethod
    def mark_app_valid_cancel_rollback(cls):
        if _has_ota():
            _data["state"] = _VALID
            _save()

    def _check(self, block, buf, offset):
        if not 0 <= block * self._block + offset <= self._row[4] - len(buf):
            raise OSError(-0x104, "ESP_ERR_INVALID_SIZE")


def _has_ota():
    return _table is _OTA


def mcu_temperature():
    """Degrees Celsius (docs/library/esp32.rst)."""
    return 42
