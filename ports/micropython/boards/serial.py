# What boards without a network freeze: MQTT over a serial line to a gateway, and the journal on flash.
include("../headwater-mqtt.manifest.py")
include("../headwater-link.manifest.py")
include("../headwater-store.manifest.py")
