"""The packages: those that are found, and directories of data among them. One of these is ``pet.bundled``, which is
recipes/. pyproject.toml cannot say both."""

from setuptools import find_namespace_packages, find_packages, setup

bundled = find_namespace_packages("recipes", exclude=["*__pycache__*"])
data = ["model_zoo.engine.csrc", "pet.bundled", *(f"pet.bundled.{directory}" for directory in bundled)]

setup(
    packages=[
        *find_packages(include=["pet", "pet.*", "adapters", "adapters.*", "model_zoo", "model_zoo.*"]),
        *data,
    ],
    package_data={"*": ["py.typed", "*.pyi"], **{package: ["*"] for package in data}},
)
