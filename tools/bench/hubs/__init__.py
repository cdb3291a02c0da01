"""Servers of messages side by side: who starts them, what they speak, and the load that all of them get."""
