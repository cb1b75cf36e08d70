"""Pushing an adapter to the Hugging Face Hub: all of it in one commit, or nothing."""

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import validate_repo_id

from toolkit.errors import CalibrantError, first_line

UNCHANGED = "nothing was committed, and the adapter's folder is as it was"
LICENCE = ("license", "license_name", "license_link")


def check_repo(repo: str) -> None:
    """Checks the form of a Hub id, without asking the Hub.

    Raises:
        CalibrantError: No repository can have that id.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise CalibrantError(
            f"{repo!r} cannot be the id of a repository ({first_line(error)}); give NAME or OWNER/NAME"
        ) from error


def base_licence(base: str) -> dict[str, str]:
    """Asks the Hub for the licence in a base's card; empty where that is not to be had."""
    try:
        card = HfApi().model_info(base).card_data
    except Exception:  # as in `_faults`; a card without a licence is better than none
        return {}
    found = {} if card is None else card.to_dict()
    return {key: found[key] for key in LICENCE if isinstance(found.get(key), str)}


def open_repo(repo: str, *, private: bool) -> str:
    """Makes a model repository, where it is not there yet.

    Args:
        repo: OWNER/NAME, or NAME for one in the account of the token.
        private: Whether only its owner may see it.

    Returns:
        The repository's full id.

    Raises:
        CalibrantError: The Hub refuses it, cannot be reached, or has it already and shows it to all though it
            is to be private.
    """
    with _faults(repo):
        if get_token() is None:
            raise LocalTokenNotFoundError
        api = HfApi()
        found = api.create_repo(repo, private=private or None, exist_ok=True).repo_id
        public = private and not api.model_info(found).private
    if public:
        raise CalibrantError(
            f"{found} is on the Hub already and everybody sees it; make it private there, or leave out "
            "--private"
        )
    return found


def push(
    repo: str, files: Sequence[Path], written: Mapping[str, str], *, known: Sequence[str], message: str
) -> str:
    """Puts files into a repository in one commit.

    Args:
        repo: The repository, which is there.
        files: Files that go to its top under their own names.
        written: Text files beside them, by name, which take the place of those.
        known: Names that are removed from the repository where they are not among the files, so that nothing
            of an earlier adapter stays.
        message: The commit's first line.

    Returns:
        The commit's address.

    Raises:
        CalibrantError: The push failed; then the repository is as it was.
    """
    additions: dict[str, Path | bytes] = {path.name: path for path in files}
    additions |= {name: text.encode() for name, text in written.items()}
    with _faults(repo):
        api = HfApi()
        info = api.model_info(repo)
        there = {sibling.rfilename for sibling in info.siblings or ()}
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(name, content) for name, content in additions.items()),
            *(CommitOperationDelete(name) for name in known if name in there and name not in additions),
        ]
        with warnings.catch_warnings():  # the Hub library asks whether predictions.parquet is meant
            warnings.filterwarnings("ignore", "It seems that you are about to commit a data file")
            commit = api.create_commit(repo, operations, commit_message=message, parent_commit=info.sha)
    return str(commit.commit_url)


@contextmanager
def _faults(repo: str) -> Iterator[None]:
    """Turns whatever the Hub and the way to it may do into one line, in which no token stands."""
    logger = logging.getLogger("huggingface_hub.utils._http")
    logger.addFilter(_without_addresses)
    try:
        yield
    except Exception as error:  # the Hub library fails in any way on an answer that makes no sense
        raise CalibrantError(_redacted(_explain(error, repo))) from None
    finally:
        logger.removeFilter(_without_addresses)


def _without_addresses(record: logging.LogRecord) -> bool:
    """Keeps back what the Hub library logs of a failed request: addresses of uploads are signed."""
    return "thrown while requesting" not in record.getMessage()


def _explain(error: Exception, repo: str) -> str:
    """Says what went wrong and how to go on."""
    again = f"{UNCHANGED}; run the same command again"
    cause = _cause(error)
    if isinstance(cause, LocalTokenNotFoundError):
        return "nobody is logged in to the Hub here; run `hf auth login` with a token that may write"
    if isinstance(cause, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE keeps this machine off the Hub; unset it and run the same command again"
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        said = first_line(ValueError(cause.server_message)) if cause.server_message else "no reason given"
        if status == 401:
            return (
                f"the Hub does not know this token or does not show it {repo} (401, {said}); {UNCHANGED}; "
                "run `hf auth login` with a token that may write there, then the same command again"
            )
        if status == 403:
            return (
                f"the token may not write to {repo} (403, {said}); {UNCHANGED}; run `hf auth login` with one "
                "that may, or give another REPO"
            )
        if status == 404:
            return (
                f"{repo} is not on the Hub, or this token may not see it (404, {said}); {UNCHANGED}; check "
                "the spelling, then run the same command again"
            )
        if status in (409, 412):
            return f"somebody else has just changed {repo} ({status}, {said}); {again}"
        if status == 429:
            wait = cause.response.headers.get("Retry-After")
            when = f"in {wait} seconds" if wait and wait.isdigit() else "in some minutes"
            return f"the Hub takes no more requests for now (429); {again} {when}"
        if status >= 500:
            return f"the Hub has a fault of its own ({status}, {said}); {again} in some minutes"
        return f"the Hub refuses the push ({status}, {said}); {again} when that is mended"
    if isinstance(cause, HTTPError):
        return (
            f"the connection to the Hub broke ({first_line(cause)}); {again}, it sends only what is missing"
        )
    return f"the push failed ({first_line(cause)}); {again}"


def _cause(error: BaseException) -> BaseException:
    """Returns the Hub's answer or the broken connection that an error comes from, or else its first cause."""
    while not isinstance(error, HTTPError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _redacted(text: str) -> str:
    """Returns a text in which no token stands, whoever wrote it there."""
    token = get_token()
    if token:
        text = text.replace(token, "<token>")
    return re.sub(r"hf_\w{8,}", "<token>", text)
