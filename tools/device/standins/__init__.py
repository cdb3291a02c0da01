"""Stand-ins for the modules of ESP32 and RP2 firmware that MicroPython's unix build lacks.

Each behaviour names its source: a page of MicroPython's documentation or a file of its repository (checked at version
1.29), of ESP-IDF, lwIP or cyw43-driver. Durations that no source states are in one table (``radio.TIMES``) and marked.
"""
