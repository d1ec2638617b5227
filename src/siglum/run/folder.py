"""Where the parts of a run lie.

runs/NAME/{config.json, log.jsonl, 1-vectors, 2-tokenizer, 3-decoder, 4-index, 5-runs, 6-report}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from siglum.config import RunConfig, as_dict, from_dict
from siglum.files import CONFIG_FILE as CONFIG_FILE
from siglum.log import BothLogs, JsonlLog, Log, TensorBoardLog
from siglum.rootfiles import read_kept_json, write_root_json
from siglum.types import SiglumError

VECTORS, TOKENIZER, DECODER, INDEX, RUNS, REPORT = STAGES = (
    "1-vectors",
    "2-tokenizer",
    "3-decoder",
    "4-index",
    "5-runs",
    "6-report",
)
"""The folders of the stages, in the order in which they are made."""
DENSE = f"{TOKENIZER}/dense"
"""The space that dense search has and the tokenizer begins with lies in the tokenizer's folder."""
LOG_FILE = "log.jsonl"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run's stages lie."""

    root: Path

    @property
    def vectors(self) -> Path:
        """Stage 1."""
        return self.root / VECTORS

    @property
    def tokenizer(self) -> Path:
        """Stage 2."""
        return self.root / TOKENIZER

    @property
    def dense(self) -> Path:
        """Stage 2, the dense space every system starts from."""
        return self.root / DENSE

    @property
    def decoder(self) -> Path:
        """Stage 3."""
        return self.root / DECODER

    @property
    def index(self) -> Path:
        """Stage 4."""
        return self.root / INDEX

    @property
    def runs(self) -> Path:
        """Stage 5."""
        return self.root / RUNS

    @property
    def report(self) -> Path:
        """Stage 6."""
        return self.root / REPORT

    def config(self) -> RunConfig:
        """Read the run's configuration."""
        stored = read_kept_json(self.root, CONFIG_FILE)
        if stored is None:
            raise SiglumError(
                f"{self.root} is not a run folder: it has no {CONFIG_FILE}; begin one with `siglum encode`."
            )
        config: RunConfig = from_dict(RunConfig, stored)
        return config

    @property
    def has_search_alone(self) -> bool:
        """Whether the configuration is that of a saved retriever: how it searches, not how it was trained."""
        return set(read_kept_json(self.root, CONFIG_FILE) or {}) == {"search"}

    def write_config(self, config: RunConfig) -> None:
        """Write the run's configuration."""
        write_root_json(self.root, CONFIG_FILE, as_dict(config))

    def log(self, tensorboard: bool = False) -> Log:
        """Return the run's log: JSONL, and TensorBoard beside it if asked for."""
        jsonl = JsonlLog(self.root / LOG_FILE)
        return BothLogs(jsonl, TensorBoardLog(self.root / "tensorboard")) if tensorboard else jsonl
