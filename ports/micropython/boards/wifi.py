# What boards with WiFi freeze: a whole board from its settings, with WiFi, MQTT, TLS, the journal and updates.
include("../headwater-wifi.manifest.py")
include("../headwater-device.manifest.py")
include("../headwater-update.manifest.py")
