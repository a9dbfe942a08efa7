"""Turns answers of a bucket's server into the errors of a store, with the next step."""

from __future__ import annotations

import re

from hopyard.errors import ExpiredError, NotWritableError, StorageError, StorageFullError, UnreachableError

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_BAD_NAME = ("InvalidBucketName", "InvalidResourceName", "Invalid bucket name")
_BAD_CREDENTIALS = (
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed", "UnauthenticatedError",
    "401 Unauthorized", "failed to authenticate the request",
)  # fmt: skip
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired")
_SKEWED = ("RequestTimeTooSkewed",)
_FORBIDDEN = ("PermissionDeniedError", "AccessDenied", "403 Forbidden", "AuthorizationFailure")
_FULL = ("QuotaExceeded", "StorageFull", "507 Insufficient", "InsufficientCapacity")
_NO_CREDENTIALS = ("169.254.169.254", "metadata.google.internal", "/latest/api/token")
_ELSEWHERE = (
    "redirect without LOCATION", "301 Moved", "PermanentRedirect", "AuthorizationHeaderMalformed",
    "IllegalLocationConstraint",
)  # fmt: skip
CUT_OFF = ("response body error", "kind: Interrupted")
"""Signs in the library's error of an answer that ended in its middle, and of a connection that was reset, after which
the library repeats no deletion."""

_UNREACHABLE = ("error sending request", "Connect", "timed out", "dns error", "operation timed out", *CUT_OFF)


def bucket_error(url: str, text: str) -> StorageError | None:
    """The error for a request to a bucket that does not exist, if the answer says so."""
    if not any(sign in text for sign in _NO_BUCKET):
        return None
    return StorageError(
        f"the bucket of {url} does not exist{_asked(text)}. Create it, or correct the URL (or the endpoint, "
        "if the bucket is not at that server)."
    )


def request_error(url: str, name: str, kind: str, text: str, writing: bool) -> StorageError:
    """The error for a request that failed otherwise.

    Args:
        kind: class of the library's error.
        text: what it says; only the server's code and message of it are repeated.
    """
    place, action = f"{url}/{name}".rstrip("/"), "written" if writing else "read"
    said, seen = _said(text), f"{kind} {text}"

    def has(signs: tuple[str, ...]) -> bool:
        return any(sign in seen for sign in signs)

    missing = bucket_error(url, text)
    if missing is not None:
        return missing
    if has(_BAD_NAME):
        return StorageError(
            f"{place} cannot be {action}: the server refuses the name of the bucket in this URL ({said}). Names have 3 "
            "to 63 lower-case letters, digits and hyphens. Correct the URL."
        )
    if has(_FULL):
        return StorageFullError(
            f"no space is left for {place}: {said}. Nothing was half-written. Make space there, or raise its quota."
        )
    if has(_NO_CREDENTIALS):
        return StorageError(
            f"{place} cannot be {action}: no credentials were found ({said}). Set them in the environment of "
            f"this process ({_variables(url)}), or for a public bucket give skip_signature=True."
        )
    if has(_EXPIRED):
        return ExpiredError(
            f"{place} cannot be {action}: the credentials have expired ({said}). Renew them. A process asks for new "
            "ones where a role, a web identity or credential_provider= gives them; what the environment holds is read "
            "once, so stop the process then, and resume the run with others."
        )
    if has(_SKEWED):
        return StorageError(
            f"{place} cannot be {action}: the clock of this machine differs too much from the server's ({said}). Set "
            "it by NTP."
        )
    if has(_BAD_CREDENTIALS):
        return StorageError(
            f"{place} cannot be {action}: the server does not accept the credentials ({said}). Correct those in the "
            "environment of this process, or renew them."
        )
    if has(_ELSEWHERE):
        return StorageError(
            f"{place} cannot be {action}: the bucket is in another region ({said}). Set AWS_REGION, or give region=."
        )
    if has(_FORBIDDEN):
        right = "to put and delete objects" if writing else "to get objects and list the bucket"
        error = NotWritableError if writing else StorageError
        return error(
            f"{place} cannot be {action}: the server forbids it ({said}). Look whether the credentials are right, and "
            f"give them the right {right}."
        )
    if has(_UNREACHABLE):
        return UnreachableError(
            f"{place} cannot be {action}: nothing answers{_asked(text)} ({said}). Look at the network and at the "
            "endpoint (AWS_ENDPOINT_URL or endpoint=); retry_config= and client_options= change how long is waited."
        )
    return StorageError(f"{place} cannot be {action}: {said}. Look at the server.")


def _variables(url: str) -> str:
    """Environment variables with which this kind of store finds its credentials."""
    if url.startswith("s3"):
        return "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if url.startswith("gs"):
        return "GOOGLE_APPLICATION_CREDENTIALS"
    return "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"


def _asked(text: str) -> str:
    """Address of the request: scheme and host only, since a query may hold a signature."""
    asked = re.search(r"(https?://)(?:[^/\s@]*@)?([^/\s?,)]+)", text)
    return f" at {asked[1]}{asked[2]}" if asked else ""


def _said(text: str) -> str:
    """The server's status, code and message, without what it repeats of the request."""
    status = re.search(r"status code: (\d{3}[^:\n]*)", text)
    code, message = (re.search(f"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message"))
    parts = [found[1].strip().splitlines()[0].rstrip(".") for found in (status, code, message) if found]
    if parts:
        return ": ".join(parts)
    kind = re.search(r"kind: (\w+)", text)
    # What is behind the last colon says why; what is before it repeats the URL.
    why = text.split("\n\nDebug source")[0].splitlines()[0].rpartition(" - ")[2].rpartition(": ")[2]
    return re.sub(r"https?://\S+", "...", why) + (f", {kind[1]}" if kind else "")
