"""A short run at QoS 1 and 2 with the flash outbox on littlefs, whose power goes at every flash operation.

Then a thousand times at random ones, of up to three lives in a row. The other end is the core's server, or its hub.
"""

from fmq_hub import Hub
from pipe import Random
from ram_flash import LittlefsFile
from test_fmq_power_cuts import cut_life, life
from test_power_cuts import World, check_up_only

RANDOM = 1000


class FlashWorld(World):
    file = LittlefsFile


def run(ways, cuts):
    """A life for each cut, and one to the end. How many of the lives were cut."""
    world = FlashWorld(ways)
    cut_lives = 0
    for cut in cuts:
        used = world.live(cut)
        cut_lives += used > cut
    world.live()
    if ways == (True, True):
        world.up = False
        check_up_only(world)
    else:
        world.check()
    return cut_lives


lives = 0
for ways in ((True, False), (False, True), (True, True)):
    world = FlashWorld(ways)
    total = world.live()
    assert total > 10, total
    for cut in range(total):
        assert run(ways, (cut,)) == 1, cut
    lives += total
    print("every operation:", total, "cuts of a run", "publishing" * ways[0], "receiving" * ways[1])
random = Random(12)
cuts = 0
for _ in range(RANDOM):
    ways = ((True, False), (False, True), (True, True))[random.below(3)]
    cuts += run(ways, [random.below(total) for _ in range(1 + random.below(3))])
print("random:", RANDOM, "runs,", cuts, "cuts")
assert cuts > RANDOM

# The same with FMQ, whose journal has no received messages.
NEVER = 1 << 20
messages = []
file = LittlefsFile(None, 0, NEVER)
life(Hub(), file, 1, 4, messages)
total = NEVER - file.cut_after
assert total > 5, total
for cut in range(total):
    cut_life(LittlefsFile(None, 0, cut), messages)
print("every operation:", total, "cuts of a run over FMQ")
print("done")
