"""What others would run: small scripts in plain PyTorch and in peer libraries, for `make bench`.

Each is a file that a practitioner could have written after the library's own tutorial. None of them
imports dpexp. They share their data, their models, and the clock that prints their last line.
"""
