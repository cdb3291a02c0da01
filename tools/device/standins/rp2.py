"""``rp2`` of RP2 firmware (ports/rp2/modrp2.c), without PIO, DMA and the flash device."""

from standins import network

country = network.country


def bootsel_button():
    """The button is not pressed."""
    return 0
