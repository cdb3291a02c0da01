# MicroPython 1.29 for ESP32 with headwater frozen in. In MicroPython's ports/esp32 (docs/firmware.md):
#   make BOARD=ESP32_GENERIC submodules
#   make BOARD=ESP32_GENERIC FROZEN_MANIFEST=$COMPONENTS/boards/ESP32_GENERIC/manifest.py
include("$(PORT_DIR)/boards/manifest.py")
include("../wifi.py")
