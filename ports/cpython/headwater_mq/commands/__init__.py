"""The commands `headwater mq`."""
