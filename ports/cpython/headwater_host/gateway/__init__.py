"""The gateway: record messages from boards, brokers and hubs, and acknowledge them when on disk (docs/gateway.md).

``service`` runs the sources that ``config`` describes; ``recording`` writes their frames to the capture log.
"""
