"""A local queue manager in one file, with the behaviour of MQPUT, MQPUT1 and MQGET."""
