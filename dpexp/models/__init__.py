"""Plain networks that know nothing of privacy; every classifier is named `head`."""
