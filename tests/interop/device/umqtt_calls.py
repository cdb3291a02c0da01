"""What programs written for umqtt do, call by call, on a board; ``settings.SCENARIO`` says which."""

import sys
import time

import settings

# The one line that is new to them.
import headwater_board.umqtt  # noqa: F401


def publish_once() -> None:
    """Connect, publish, disconnect: what a button or a sensor does."""
    from umqtt.simple import MQTTClient

    c = MQTTClient("umqtt_client", "127.0.0.1", settings.PORT)
    print("connected", c.connect())
    c.publish(b"foo_topic", b"hello")
    c.publish("foo_topic", "text", True)
    for qos in range(3):
        c.publish(b"foo_topic", b"at %d" % qos, qos=qos)
    c.disconnect()
    print("published")


def wait_loop() -> None:
    """Subscribe, and wait for one message after the other."""
    from umqtt.simple import MQTTClient

    def sub_cb(topic: bytes, msg: bytes) -> None:
        print((topic, msg))

    c = MQTTClient("umqtt_client", "127.0.0.1", settings.PORT)
    c.set_callback(sub_cb)
    c.connect()
    c.subscribe(b"foo_topic")
    print("subscribed")
    # Exactly as many as arrive.
    for _ in range(6):
        assert c.wait_msg() & 0xF0 == 0x30
    c.ping()
    assert c.wait_msg() is None
    c.disconnect()
    print("done")


def check_loop() -> None:
    """Look for messages now and then, and go on with other things."""
    from umqtt.simple import MQTTClient

    got = []
    c = MQTTClient(b"umqtt_client", "127.0.0.1", settings.PORT, keepalive=1)
    c.set_callback(lambda topic, msg: got.append(msg))
    c.connect(True)
    c.subscribe(b"foo_topic", qos=2)
    print("subscribed")
    turns = 0
    while len(got) < 6:
        assert c.check_msg() in (None, 0x30, 0x32, 0x34)
        turns += 1
        time.sleep_ms(20)
    # Longer than the keep-alive: looking keeps the connection.
    for _ in range(100):
        c.check_msg()
        time.sleep_ms(20)
    c.disconnect()
    print("done", got)


def led() -> None:
    """A callback that switches something, and answers."""
    from umqtt.simple import MQTTClient

    class Pin:
        on = False

        def value(self, on: bool) -> None:
            self.on = on
            print("led", on)

    pin = Pin()

    def sub_cb(topic: bytes, msg: bytes) -> None:
        if msg == b"on":
            pin.value(False)
        elif msg == b"off":
            pin.value(True)
        elif msg == b"toggle":
            pin.value(not pin.on)
        # Publishing from within the callback, as many do.
        c.publish(b"led/state", b"1" if pin.on else b"0", False, 1)

    c = MQTTClient("umqtt_client", "127.0.0.1", settings.PORT)
    c.set_callback(sub_cb)
    c.connect()
    c.subscribe(b"led")
    print("subscribed")
    try:
        for _ in range(4):
            c.wait_msg()
    finally:
        c.disconnect()
    print("done")


def robust() -> None:
    """Go on over a broker that restarts, into the session that was kept or with a new one."""
    from umqtt.robust import MQTTClient

    def sub_cb(topic: bytes, msg: bytes) -> None:
        print("got", msg)
        if msg == b"stop":
            sys.exit()

    c = MQTTClient("umqtt_client", "127.0.0.1", settings.PORT)
    c.DEBUG = True
    c.DELAY = 0.05
    c.set_callback(sub_cb)
    if not c.connect(clean_session=False):
        print("new session")
        c.subscribe(b"foo_topic", 1)
    print("subscribed")
    while True:
        c.wait_msg()


def robust_publisher() -> None:
    """Publish at each QoS while the broker comes and goes; look for messages in between."""
    from umqtt.robust import MQTTClient

    stopped = []
    c = MQTTClient("umqtt_client", "127.0.0.1", settings.PORT)
    c.DEBUG = True
    c.DELAY = 0.05
    c.set_callback(lambda topic, msg: stopped.append(msg))
    c.connect(False)
    c.subscribe(b"stop", 1)
    n = 0
    while not stopped:
        c.publish(b"numbers", b"%d" % n, qos=1 + n % 2)
        n += 1
        c.check_msg()
        if n % 10 == 0:
            print("published", n)
        time.sleep_ms(5)
    c.disconnect()
    print("stopped", n)


def failures() -> None:
    """What goes wrong is OSError or MQTTException, as ever; and in time."""
    from umqtt.simple import MQTTClient, MQTTException

    def said(call: object, *arguments: object) -> None:
        try:
            call(*arguments)
            print("nothing")
        except OSError as e:
            print("OSError", e.errno)
        except MQTTException as e:
            print("MQTTException", e.args[0])

    c = MQTTClient("umqtt_client", "127.0.0.1", settings.PORT, user="who", password="knows")
    said(c.publish, b"t", b"")
    said(c.wait_msg)
    said(c.connect)
    c = MQTTClient("umqtt_client", "127.0.0.1", settings.DEAD)
    said(c.connect, True, 0.3)
    c = MQTTClient("umqtt_client", "127.0.0.1", settings.CLOSED)
    said(c.connect)
    said(c.set_last_will, b"t", b"", False, 3)
    c = MQTTClient("umqtt_client", "127.0.0.1", settings.PORT, user="me", password="known")
    print(c.connect())
    said(c.publish, b"t/#", b"")
    said(c.publish, b"t", bytes(5000))
    said(c.subscribe, b"t+")
    said(c.publish, b"t", b"", False, 3)
    said(c.publish, b"t", b"fine", False, 2)
    c.disconnect()
    print("done")


def frozen() -> None:
    """A broker that stands still ends in a time-out, whatever was waited for; nothing hangs."""
    from umqtt.simple import MQTTClient

    c = MQTTClient("umqtt_client", "127.0.0.1", settings.PORT, keepalive=1)
    c.connect(False, 1)
    c.set_callback(lambda topic, msg: None)
    print("freeze")
    errors = []

    def said(call: object, *arguments: object) -> None:
        try:
            call(*arguments)
        except OSError as e:
            errors.append(e.errno)

    said(c.wait_msg)
    said(c.connect, False, 0.5)
    said(c.publish, b"t", b"late", False, 1)
    print("errors", errors)
    while True:
        try:
            c.connect(False)
            break
        except OSError:
            time.sleep_ms(50)
    # It is sent, without being published again.
    c.publish(b"t", b"later", False, 1)
    c.disconnect()
    print("done")


def will_and_large() -> None:
    """A will, messages larger than the buffer both ways, and a callback that raises."""
    from umqtt.simple import MQTTClient

    class Large(MQTTClient):
        tx_size = 5000
        outbox_size = 10000

    got = []
    c = Large("umqtt_client", "127.0.0.1", settings.PORT)

    def sub_cb(topic: bytes, msg: bytes) -> None:
        got.append(len(msg))
        if len(got) == 4:
            raise ValueError("no")

    c.set_callback(sub_cb)
    c.set_last_will(b"will", b"gone", True, 1)
    c.connect(False)
    c.subscribe(b"large", 2)
    for qos in range(3):
        c.publish(b"large", bytes(4000 + qos), False, qos)
    while len(got) < 3:
        c.wait_msg()
    try:
        c.publish(b"large", b"once more", False, 1)
        while True:
            c.wait_msg()
    except ValueError:
        # Not acknowledged: it comes again.
        c.connect(False)
    c.wait_msg()
    print("large", got)
    # The will is published when the connection ends without a word.
    c.sock.close()
    print("done")


def secure() -> None:
    """Over TLS, as umqtt's programs ask for it: a context, or True."""
    import tls
    from umqtt.simple import MQTTClient

    context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
    with open("ca.der", "rb") as f:
        ca = f.read()
    context.load_verify_locations(ca)
    for ssl, params in (
        (context, {}),
        (context, {"server_hostname": "localhost"}),
        (True, {}),
        (True, {"server_hostname": "localhost", "cadata": ca}),
    ):
        c = MQTTClient("umqtt_client", "localhost", settings.PORT, ssl=ssl, ssl_params=params)
        c.connect()
        c.publish(b"t", b"x", False, 1)
        c.disconnect()
        print("secure")
    wrong = MQTTClient(
        "umqtt_client", "localhost", settings.PORT, ssl=context, ssl_params={"server_hostname": "elsewhere"}
    )
    try:
        wrong.connect()
    except OSError:
        print("done")


globals()[settings.SCENARIO]()
