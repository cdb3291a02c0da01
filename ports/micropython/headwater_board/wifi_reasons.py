"""Texts of the status codes of ESP32 and RP2: docs/wifi.md."""

REASONS = {
    200: "beacon timeout",
    201: "no access point found",
    202: "wrong password",
    203: "association failed",
    204: "handshake timeout",
    210: "no access point with compatible security",
    211: "no access point with this authentication mode",
    212: "no access point with enough signal",
    1000: "idle",
    1001: "connecting",
    1010: "connected",
    0: "idle",
    1: "connecting",
    2: "no address yet",
    3: "connected",
    -1: "connection failed",
    -2: "no access point found",
    -3: "wrong password",
}
