"""The digest of code in processes of their own: the same in every one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import collections, dataclasses, enum, functools, json, logging, sys
import numpy, torch
from hopyard.objects.identity import identity

class Kind(enum.Enum):
    FAST = 1

@dataclasses.dataclass
class Config:
    width: int = 3
    names: set = dataclasses.field(default_factory=set)
    def area(self):
        return self.width ** 2

Point = collections.namedtuple("Point", "x y")
logger = logging.getLogger("models")
names = {"alpha", "beta", "gamma", "delta"}
helpers = {len, sorted, numpy.sum}
config = Config(4, {"a", "b", "c"})
table = numpy.arange(6).reshape(2, 3)
weights = torch.ones(3, dtype=torch.bfloat16)
layer = torch.nn.Linear(2, 2, bias=False)
torch.nn.init.constant_(layer.weight, 0.5)
half = functools.partial(round, ndigits=2)

@functools.lru_cache
def cached(n):
    return n if n < 2 else cached(n - 1) + cached(n - 2)

@torch.no_grad()
def frozen(x):
    return x + table

def build(scale):
    def gen(params):
        logger.info("building")
        return names, helpers, config, weights, layer, half, cached, frozen, Kind.FAST, Point(1, scale), gen
    return gen

print(json.dumps(identity(build(2)).to_json()))
"""


def run(arguments: list[str], hash_seed: int, text: str | None = None) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, *arguments], input=text, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_digest_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "moved.py").write_text("# moved\n" + SCRIPT)
    first = run([str(tmp_path / "train.py")], hash_seed=0)  # which is forked
    assert first["digest"] is not None
    assert first["undigestible"] == []
    assert run([str(tmp_path / "moved.py")], hash_seed=2) == first


def test_code_without_a_file_has_the_same_digest_in_every_process() -> None:
    first = run(["-c", SCRIPT], hash_seed=0)  # which is forked
    assert first["digest"] is not None
    assert run(["-"], hash_seed=2, text=SCRIPT) == first
