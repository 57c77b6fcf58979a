"""Models on the Hugging Face hub: pushed as they are published into a folder, and fetched into the cache.

Only the files of a published model are fetched, config.json first: a model of another library is refused before its
weights are moved. What was fetched once serves without a network, too (HF_HUB_OFFLINE=1 asks for no other).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rdlm import __version__
from rdlm.api import publish as publication
from rdlm.api.publish import Dtype
from rdlm.errors import InputError
from rdlm.storage.files import cache_dir

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel


PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
NAME = re.compile(f"{PART}/{PART}", re.ASCII)
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


def is_name(text: str) -> bool:
    """Return whether a text is like user/name, and not a path into a folder that exists here."""
    return _possible(text) and not Path(text.partition("/")[0]).is_dir()


def _possible(text: str) -> bool:
    return NAME.fullmatch(text) is not None and len(text) <= 96 and not any(pair in text for pair in ("--", ".."))


def check_name(text: str) -> None:
    """Refuse what cannot be a model's name on the hub."""
    if not _possible(text):
        raise InputError(f"{text!r} is no name on the hub: it is user/name, of letters, digits, '-', '_' and '.'")


def download(name: str) -> Path:
    """Return the folder of the cache with the newest files of a hub model, or with those fetched before if offline."""
    check_name(name)
    from huggingface_hub import snapshot_download

    place = cache_dir() / "hub" / name
    with _explained(f"{name} is no folder here, and was not fetched from the hub"):
        for files in ([publication.CONFIG], list(publication.FILES)):
            snapshot_download(
                name, local_dir=place, allow_patterns=files, library_name="rdlm", library_version=__version__
            )
            if not publication.holds(place):
                raise InputError(f"{name} on the hub is no model of rdlm: it has no {publication.CONFIG}")
            publication.describe(place)
    return place


def push(
    model: LanguageModel, name: str, *, private: bool = False, dtype: Dtype = "float32", message: str | None = None
) -> str:
    """Publish a model as user/name and return its address; it is made if it is not there yet, private if wanted."""
    check_name(name)
    from huggingface_hub import create_repo, upload_folder

    with tempfile.TemporaryDirectory(prefix="rdlm-") as place:
        folder = publication.write(model, Path(place) / "model", name=name, dtype=dtype)
        with _explained(f"{name} was not pushed to the hub"):
            made = create_repo(name, private=private, exist_ok=True)
            upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message=message or f"Publish {name} with rdlm {__version__}",
                delete_patterns=list(publication.OPTIONAL),
            )
    return str(made)


@contextmanager
def _explained(failure: str) -> Iterator[None]:
    """Turn the hub's refusals into the user's error that says what to do."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, RepositoryNotFoundError

    # Its parents are OSError and the base of whatever library the hub's client speaks HTTP with.
    unreached = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    try:
        yield
    except RepositoryNotFoundError:
        raise InputError(f"{failure}: the hub has no such model, or hides it; check the name, or {LOGIN}") from None
    except LocalTokenNotFoundError:
        raise InputError(f"{failure}: nobody is logged in; {LOGIN}") from None
    except HfHubHTTPError as error:
        code = error.response.status_code
        advice = f"{LOGIN}, with the right to do this" if code in (401, 403) else "try again later"
        raise InputError(f"{failure}: the hub answers {code}; {advice}") from error
    except unreached as error:
        raise InputError(f"{failure}: {_unreached(error)}") from error


def _unreached(error: Exception) -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set; unset it while models move to or from the hub, or use published folders"
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return f"the hub was not reached ({first}); check the connection and try again, or use published folders"
