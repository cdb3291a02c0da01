"""The demo (`./run demo`): boards, a broker, a gateway and Spark on one machine, with faults."""
