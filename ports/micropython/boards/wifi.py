# What boards with WiFi freeze: WiFi, MQTT over TCP and TLS, and the journal on flash.
include("../headwater-wifi.manifest.py")
include("../headwater-mqtt.manifest.py")
include("../headwater-store.manifest.py")
