"""Lists the packages: those in captioner/, and the recipes in configs/ as captioner.configs."""

from setuptools import find_packages, setup

setup(
    packages=[
        # The bundled models are folders of data, which package-data carries.
        *find_packages(include=["captioner*"], exclude=["captioner.bundled*"]),
        "captioner.configs",
    ],
    package_dir={"captioner.configs": "configs"},
)
