"""The main job on one machine: boards, a broker, a gateway and Spark, with faults on the way (``./run demo``)."""
