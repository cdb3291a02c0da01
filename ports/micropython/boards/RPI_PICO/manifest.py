# MicroPython 1.29 for Raspberry Pi Pico with headwater frozen in. In MicroPython's ports/rp2 (docs/firmware.md):
#   make BOARD=RPI_PICO submodules
#   make BOARD=RPI_PICO FROZEN_MANIFEST=$COMPONENTS/boards/RPI_PICO/manifest.py
include("$(PORT_DIR)/boards/manifest.py")
include("../serial.py")
