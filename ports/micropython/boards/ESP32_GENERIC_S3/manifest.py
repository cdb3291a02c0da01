# MicroPython 1.29 for ESP32-S3 with headwater frozen in. In MicroPython's ports/esp32 (docs/firmware.md):
#   make BOARD=ESP32_GENERIC_S3 submodules
#   make BOARD=ESP32_GENERIC_S3 FROZEN_MANIFEST=$COMPONENTS/boards/ESP32_GENERIC_S3/manifest.py
include("$(PORT_DIR)/boards/manifest.py")
include("../wifi.py")
