"""What pyproject.toml cannot say: all that is found in dpexp, and conf/ as a package inside it."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["dpexp*"]), "dpexp.conf"])
