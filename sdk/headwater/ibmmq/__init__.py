"""Message headers of IBM MQ (docs/protocols/ibm-mq.md): MQMDE, MQMD, MQXQH and MQDLH, in the caller's buffer."""
