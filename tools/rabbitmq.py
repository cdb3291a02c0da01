"""Run RabbitMQ with its MQTT plugin (3.1 and 3.1.1) on the loopback interface.

It runs as the current user with its own node name, cookie, port mapper and ports, so it does not interfere with a
system service. All its files are in its directory.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools import toolchain
from tools.broker import HOST, Broker, BrokerError, free_port


class RabbitMq(Broker):
    """RabbitMQ with anonymous clients, and queues and retained messages on disk. `settings` are lines of
    rabbitmq.conf.

    It grants QoS 2 subscriptions as QoS 1.
    """

    name = "RabbitMQ"
    # Erlang loads a thousand modules, and a new node waits 4.5 s for a cluster.
    start_s = 90.0
    stop_s = 30.0
    port_taken = "eaddrinuse"
    plugin = "rabbitmq_mqtt"

    def __init__(
        self, directory: Path, port: int | None = None, *, settings: Mapping[str, object] | None = None
    ) -> None:
        """Raises BrokerError if it is not installed."""
        super().__init__(directory.resolve(), port)
        program = toolchain.find("rabbitmq")
        if program is None:
            raise BrokerError(f"RabbitMQ is not installed: {toolchain.TOOLS['rabbitmq'].get}")
        self._program = program
        self._settings = dict(settings or {})
        self._mapper_port = 0
        self._mapper: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Write the configuration for `self.port` and return the command line."""
        lines = self.listener() | {"log.console": "true", "log.console.level": "info", "log.file": "false"}
        lines |= self._settings
        config = "".join(f"{key} = {value}\n" for key, value in lines.items())
        (self.directory / "rabbitmq.conf").write_text(config)
        (self.directory / "enabled_plugins").write_text(f"[{self.plugin}].\n")
        return [str(self._program)]

    def listener(self) -> dict[str, object]:
        """Return the settings of the listener on `self.port`."""
        return {
            "listeners.tcp": "none",
            "mqtt.listeners.tcp.default": f"{HOST}:{self.port}",
            "mqtt.allow_anonymous": "true",
        }

    def environment(self) -> dict[str, str]:
        """Return an environment with all paths of this node."""
        place = str(self.directory)
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": place,  # the node's cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_ALLOW_INPUT": "1",  # run the server itself, without a shell
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
        # Otherwise Erlang starts a port mapper that keeps running.
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
    """RabbitMQ with its plugin for AMQP 1.0; user and password are guest."""

    plugin = "rabbitmq_amqp1_0"

    def listener(self) -> dict[str, object]:
        """Return the settings of the port of AMQP 0-9-1 and 1.0."""
        return {"listeners.tcp.default": f"{HOST}:{self.port}"}
