# What boards without a network freeze: the same over a serial line to a gateway.
include("../headwater-link.manifest.py")
include("../headwater-device.manifest.py")
include("../headwater-update.manifest.py")
