"""IBM MQ's message headers (docs/protocols/ibm-mq.md): MQMDE, MQMD, MQXQH and MQDLH, in the caller's buffer."""
