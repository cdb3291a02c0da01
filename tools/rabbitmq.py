"""RabbitMQ with its MQTT plugin (3.1 and 3.1.1) on the loopback interface: a broker that is made quite otherwise.

It runs as the current user, with a node name, a cookie, a port mapper and ports of its own, so that it neither meets
nor disturbs one that the system runs. All its files are in its directory.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools import toolchain
from tools.broker import HOST, Broker, BrokerError, free_port


class RabbitMq(Broker):
    """Anonymous clients, queues and retained messages on disk. ``settings`` are lines of rabbitmq.conf.

    A QoS 2 subscription is granted as QoS 1.
    """

    name = "RabbitMQ"
    # Erlang loads some thousand modules, and a new node waits 4.5 s for others that might make up a cluster with it.
    start_s = 90.0
    stop_s = 30.0
    port_taken = "eaddrinuse"
    plugin = "rabbitmq_mqtt"

    def __init__(
        self, directory: Path, port: int | None = None, *, settings: Mapping[str, object] | None = None
    ) -> None:
        """Raises BrokerError when it is not installed."""
        super().__init__(directory.resolve(), port)
        program = toolchain.find("rabbitmq")
        if program is None:
            raise BrokerError(f"RabbitMQ is not installed: {toolchain.TOOLS['rabbitmq'].get}")
        self._program = program
        self._settings = dict(settings or {})
        self._mapper_port = 0
        self._mapper: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Write the configuration for ``self.port`` and name the program."""
        lines = self.listener() | {"log.console": "true", "log.console.level": "info", "log.file": "false"}
        lines |= self._settings
        config = "".join(f"{key} = {value}\n" for key, value in lines.items())
        (self.directory / "rabbitmq.conf").write_text(config)
        (self.directory / "enabled_plugins").write_text(f"[{self.plugin}].\n")
        return [str(self._program)]

    def listener(self) -> dict[str, object]:
        """The lines that say who is served on ``self.port``."""
        return {
            "listeners.tcp": "none",
            "mqtt.listeners.tcp.default": f"{HOST}:{self.port}",
            "mqtt.allow_anonymous": "true",
        }

    def environment(self) -> dict[str, str]:
        """Where everything of this node is."""
        place = str(self.directory)
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": place,  # the node's cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_ALLOW_INPUT": "1",  # the server itself, and no shell that stands before it
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_NODENAME": f"headwater-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": f"{place}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{place}/rabbitmq-env.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{place}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{place}/mnesia",
            "RABBITMQ_LOG_BASE": f"{place}/log",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{place}/config",
            "RABBITMQ_PID_FILE": f"{place}/pid",
        }

    def _serve(self) -> bool:
        # Erlang would start a port mapper that stays behind.
        self._mapper_port = free_port()
        self._mapper = subprocess.Popen(
            ["epmd", "-port", str(self._mapper_port), "-address", HOST],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return super()._serve()

    def _end(self, how: signal.Signals) -> None:
        super()._end(how)
        mapper, self._mapper = self._mapper, None
        if mapper is not None:
            mapper.kill()
            mapper.wait()


class RabbitMqAmqp(RabbitMq):
    """The same with its plugin for AMQP 1.0; the user is guest, and so is the password."""

    plugin = "rabbitmq_amqp1_0"

    def listener(self) -> dict[str, object]:
        """AMQP 0-9-1 and 1.0 have one port."""
        return {"listeners.tcp.default": f"{HOST}:{self.port}"}
