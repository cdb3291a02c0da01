# MicroPython 1.29 for Raspberry Pi Pico 2 W with headwater frozen in. In MicroPython's ports/rp2 (docs/firmware.md):
#   make BOARD=RPI_PICO2_W submodules
#   make BOARD=RPI_PICO2_W FROZEN_MANIFEST=$COMPONENTS/boards/RPI_PICO2_W/manifest.py
include("$(PORT_DIR)/boards/RPI_PICO2_W/manifest.py")
include("../wifi.py")
