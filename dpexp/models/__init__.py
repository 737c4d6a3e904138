"""Networks, independent of privacy; every classifier is named `head`."""
