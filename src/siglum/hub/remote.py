"""What the hub is asked for and given; only JSON, safetensors and the card are taken and sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from siglum.given import as_folder
from siglum.types import SiglumError, shown, truth_value

PATTERNS = ("*.json", "*.safetensors", "README.md")


def find_folder(name: str | Path, *, revision: str | None, token: str | None, progress: bool) -> Path:
    """Return a folder that is here as it is, else that in which the hub's cache keeps the repository of this name."""
    folder, progress = as_folder(name), truth_value("progress", progress)
    if folder.is_dir():
        if revision is not None:
            raise SiglumError(f"{folder} is a folder here, which has no revision {revision}; leave it out.")
        return folder
    with _talking(f"{name} is no folder here, and could not be had from the hub", progress):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(name), revision=revision, token=token, allow_patterns=list(PATTERNS)))


@dataclass(frozen=True, slots=True)
class Push:
    """How a repository is to be written."""

    private: bool = False
    revision: str | None = None
    """A branch; None is the main one."""
    token: str | None = None
    """None is the one that `hf auth login` keeps."""
    message: str = "Upload a Siglum retriever"
    progress: bool = False

    def __post_init__(self) -> None:
        for name in ("private", "progress"):
            truth_value(name, getattr(self, name))


def publish(folder: Path, name: str, push: Push) -> str:
    """Upload a folder as the whole content of a repository, which is made if it is not there; return its address."""
    with _talking(f"{shown(name)} could not be written on the hub", push.progress):
        from huggingface_hub import HfApi

        api = HfApi(token=push.token)
        place = api.create_repo(name, private=push.private, exist_ok=True)
        if push.revision is not None:
            api.create_branch(place.repo_id, branch=push.revision, exist_ok=True)
        api.upload_folder(
            repo_id=place.repo_id,
            folder_path=folder,
            revision=push.revision,
            commit_message=push.message,
            allow_patterns=list(PATTERNS),
            delete_patterns=list(PATTERNS),  # of an earlier content
        )
        return str(place)


@contextmanager
def _talking(wrong: str, progress: bool) -> Iterator[None]:
    """Say in one sentence what went wrong, and draw no bars unless they are asked for."""
    from huggingface_hub import utils

    hidden = not progress and not utils.are_progress_bars_disabled()  # type: ignore[attr-defined]
    if hidden:
        utils.disable_progress_bars()  # type: ignore[attr-defined]
    try:
        yield
    except Exception as error:  # of the hub, of HTTP, of the network and of the disk; each has its own classes
        told = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
        raise SiglumError(
            f"{wrong} ({type(error).__name__}: {told}); check the name, the network and the token."
        ) from error
    finally:
        if hidden:
            utils.enable_progress_bars()  # type: ignore[attr-defined]
