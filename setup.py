"""The packages: those that are found, and ``pet.bundled``, which is recipes/. pyproject.toml cannot say both."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["pet", "pet.*", "adapters", "adapters.*", "model_zoo", "model_zoo.*"]),
        "pet.bundled",
    ]
)
