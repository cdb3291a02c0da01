"""The fields of an access point, which ``standins.radio.Air`` explains: one that is up, and open."""

NETWORK = {
    "password": "",
    "bssid": "020000000001",
    "channel": 6,
    "rssi": -50,
    "up": True,
    "dead": False,
    "dhcp_ms": 300,
    "reason": 0,
    "refuses": False,
    "wpa3": False,
    "starts": 1,
}
