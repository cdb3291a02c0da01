"""Run RabbitMQ with its MQTT plugin (3.1 and 3.1.1) on the loopback interface.

It runs as the current user with its own node name, cookie, port mapper and ports, so it does not interfere with a
system service. All its files are in its directory. `RabbitMqCluster` is three nodes with quorum queues.
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
        self.mapper_port = 0
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

    @property
    def node(self) -> str:
        """Return the node's name."""
        return f"headwater-{self.port}@localhost"

    def environment(self) -> dict[str, str]:
        """Return an environment with all paths of this node."""
        place = str(self.directory)
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": place,  # the node's cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self.mapper_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_ALLOW_INPUT": "1",  # run the server itself, without a shell
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_NODENAME": self.node,
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
        if self.mapper_port:
            return super()._serve()
        # Otherwise Erlang starts a port mapper that keeps running.
        self.mapper_port = free_port()
        self._mapper = subprocess.Popen(
            ["epmd", "-port", str(self.mapper_port), "-address", HOST],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return super()._serve()

    def _end(self, how: signal.Signals) -> None:
        super()._end(how)
        mapper, self._mapper = self._mapper, None
        if mapper is not None:
            self.mapper_port = 0
            mapper.kill()
            mapper.wait()


class RabbitMqAmqp(RabbitMq):
    """RabbitMQ with its plugin for AMQP 1.0; user and password are guest."""

    plugin = "rabbitmq_amqp1_0"

    def listener(self) -> dict[str, object]:
        """Return the settings of the port of AMQP 0-9-1 and 1.0."""
        return {"listeners.tcp.default": f"{HOST}:{self.port}"}


class RabbitMqCluster(RabbitMq):
    """Three nodes on this machine; sessions that are kept have quorum queues on all of them. Clients use the first."""

    #: Nodes besides the first.
    others = 2

    def __init__(self, directory: Path, *, settings: Mapping[str, object] | None = None) -> None:
        """Raises BrokerError if it is not installed."""
        super().__init__(directory, settings={"mqtt.durable_queue_type": "quorum", **(settings or {})})
        self._nodes: list[RabbitMq] = []

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the nodes."""
        return [*super().pids, *(pid for node in self._nodes for pid in node.pids)]

    def start(self) -> None:
        """Start the nodes one after the other, each joining the first. Raises BrokerError."""
        super().start()
        cookie = (self.directory / ".erlang.cookie").read_bytes()
        join = {
            "cluster_formation.peer_discovery_backend": "classic_config",
            "cluster_formation.classic_config.nodes.1": self.node,
        }
        try:
            for number in range(self.others):
                node = RabbitMq(self.directory / f"node{number}", settings=self._settings | join)
                node.mapper_port = self.mapper_port
                node.directory.mkdir(exist_ok=True)
                # A node is killed by others' questions about a cookie that differs.
                file = node.directory / ".erlang.cookie"
                file.write_bytes(cookie)
                file.chmod(0o400)
                self._nodes.append(node)
                node.start()
                if self.node not in self.control(node, "cluster_status"):
                    raise BrokerError(f"{node.node} has not joined:\n{node.log_text()[-2000:]}")
        except BaseException:
            self.kill()
            raise

    def control(self, node: RabbitMq, *words: str) -> str:
        """Return what rabbitmqctl prints about a node."""
        command = [str(self._program.with_name("rabbitmqctl")), "-n", node.node, *words]
        done = subprocess.run(command, env=node.environment(), capture_output=True, text=True, check=False)
        return done.stdout

    def _end(self, how: signal.Signals) -> None:
        nodes, self._nodes = self._nodes, []
        for node in reversed(nodes):
            node._end(how)
        super()._end(how)
