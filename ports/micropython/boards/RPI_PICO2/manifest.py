# MicroPython 1.29 for Raspberry Pi Pico 2 with headwater frozen in. In MicroPython's ports/rp2 (docs/firmware.md):
#   make BOARD=RPI_PICO2 submodules
#   make BOARD=RPI_PICO2 FROZEN_MANIFEST=$COMPONENTS/boards/RPI_PICO2/manifest.py
include("$(PORT_DIR)/boards/manifest.py")
include("../serial.py")
