# What boards with WiFi freeze: MQTT over TCP and TLS, and the journal on flash.
include("../headwater-mqtt.manifest.py")
include("../headwater-store.manifest.py")
