# MicroPython 1.29 for ESP32-C3 with headwater frozen in. In MicroPython's ports/esp32 (docs/firmware.md):
#   make BOARD=ESP32_GENERIC_C3 submodules
#   make BOARD=ESP32_GENERIC_C3 FROZEN_MANIFEST=$COMPONENTS/boards/ESP32_GENERIC_C3/manifest.py
include("$(PORT_DIR)/boards/manifest.py")
include("../wifi.py")
