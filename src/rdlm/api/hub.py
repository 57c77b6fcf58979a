"""Upload of published models to the Hugging Face hub, and download into the cache.

Only the files of a published model are downloaded, config.json first: a model of another library is rejected before its
weights are transferred. Downloaded models can be used offline (HF_HUB_OFFLINE=1 forbids any request).
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rdlm import __version__
from rdlm.api import publish
from rdlm.api.publish import Dtype
from rdlm.data.fetch import hub_errors, limited_downloads
from rdlm.errors import InputError
from rdlm.storage.files import LARGEST_JSON, cache_dir, make_cache_dir

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel


PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
NAME = re.compile(f"{PART}/{PART}", re.ASCII)


def is_name(text: str) -> bool:
    """Return whether a text has the form user/name and is not a path into an existing folder."""
    return _is_valid(text) and not Path(text.partition("/")[0]).is_dir()


def _is_valid(text: str) -> bool:
    return NAME.fullmatch(text) is not None and len(text) <= 96 and not any(pair in text for pair in ("--", ".."))


def check_name(text: str) -> None:
    """Raise InputError for a text that is not a valid name on the hub."""
    if not _is_valid(text):
        raise InputError(f"{text!r} is not a name on the hub: use user/name, with letters, digits, '-', '_' and '.'")


def download(name: str) -> Path:
    """Return the cache folder with the newest files of a hub model, or with those downloaded before if offline."""
    check_name(name)
    from huggingface_hub import snapshot_download

    folder = cache_dir("hub", *name.split("/"))
    with hub_errors(f"{name} is not a folder, and was not downloaded from the hub"):
        make_cache_dir("hub")
        most = LARGEST_JSON
        for files in ([publish.CONFIG], list(publish.FILES)):
            with limited_downloads(name, most):
                snapshot_download(
                    name, local_dir=folder, allow_patterns=files, library_name="rdlm", library_version=__version__
                )
            if not publish.is_published(folder):
                raise InputError(f"{name} on the hub is not a model of rdlm: it has no {publish.CONFIG}")
            stated = publish.describe(folder)["files"].values()
            most = max(LARGEST_JSON, *(entry["bytes"] for entry in stated))
    return folder


def push(
    model: LanguageModel, name: str, *, private: bool = False, dtype: Dtype = "float32", message: str | None = None
) -> str:
    """Publish a model as user/name and return its address; the repository is created if it does not exist."""
    check_name(name)
    from huggingface_hub import create_repo, upload_folder

    with tempfile.TemporaryDirectory(prefix="rdlm-") as temporary:
        folder = publish.write(model, Path(temporary) / "model", name=name, dtype=dtype)
        with hub_errors(f"{name} was not pushed to the hub"):
            address = create_repo(name, private=private, exist_ok=True)
            upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message=message or f"Publish {name} with rdlm {__version__}",
                delete_patterns=list(publish.OPTIONAL),
            )
    return str(address)
