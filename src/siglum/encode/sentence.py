"""Texts by any sentence-transformers model, from its hub name or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from siglum.device import check_device
from siglum.encode.base import missing_package, quiet_loading, torch_precision, weights_fingerprint
from siglum.types import SiglumError


class SentenceEncoder:
    """A sentence-transformers model as a text encoder: unit rows, or whatever the model itself ends in."""

    image_dim = 0
    picture_size = 1
    framing = "whole"
    joint = False

    def __init__(self, name: str, folder: Path, *, device: str, precision: str, batch_size: int) -> None:
        """Load the model that lies in `folder`; `name` is what the encoder is called."""
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise missing_package(name, "sentence-transformers", "pip install sentence-transformers") from error
        self.name, self.folder, self.batch_size = name, folder, batch_size
        kind = torch_precision(precision, check_device(device))
        try:
            with quiet_loading():
                self.model = SentenceTransformer(str(folder), device=device, local_files_only=True)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise SiglumError(f"{folder} holds no whole sentence-transformers model ({reason}).") from error
        self.model.eval().to(kind)
        self.text_dim = int(self.model.encode([""], show_progress_bar=False).shape[1])

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return one row a text, float32 (N, Dt); a text of unknown words alone is a zero row."""
        rows_ND = self.model.encode(list(texts), batch_size=self.batch_size, show_progress_bar=False)
        found_ND = np.array(rows_ND, np.float32).reshape(len(texts), self.text_dim)
        found_ND[[self._is_unknown(text) for text in texts]] = 0
        return found_ND

    def _is_unknown(self, text: str) -> bool:
        """Return whether no word of a text is in the vocabulary: all such texts would get one and the same row."""
        unknown = getattr(self.model.tokenizer, "unk_token_id", None)
        if unknown is None or any(letter.isascii() and letter.isalnum() for letter in text):
            return False
        return all(token == unknown for token in self.model.tokenizer.encode(text, add_special_tokens=False))

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Refuse pictures."""
        raise SiglumError(
            f"encoder {self.name} takes texts only; add one of pictures, as in minilm+efficientnet-lite2."
        )

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the model's files."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        kinds = (".safetensors", ".bin", ".json", ".txt", ".model")
        return weights_fingerprint("sentence", (path for path in self.folder.rglob("*") if path.suffix in kinds))


def build(model: str, **settings: Any) -> SentenceEncoder:
    """Return the encoder `sentence:MODEL`; a hub name is fetched unless it is in the cache already."""
    from siglum.encode.hub import model_folder

    name = f"sentence:{model}"
    return SentenceEncoder(name, model_folder(model, name), **settings)
