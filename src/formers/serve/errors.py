"""Errors in the form of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from formers.core import FormersError

INVALID = "invalid_request_error"


class ApiError(Exception):
    """A request that is not answered: a status, a sentence, and what it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The answer, ready for JSON."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def as_api_error(error: BaseException) -> ApiError:
    """An error in the API's form; what is no mistake of the user's is told without its details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, FormersError):
        return ApiError(400, str(error))
    if isinstance(error, MemoryError):
        return ApiError(503, "the machine has too little memory for this: ask for fewer tokens or texts.", "server_error")
    return ApiError(500, f"the server failed with {type(error).__name__}: its log says more.", "server_error")


def answer(error: BaseException) -> Response:
    """The response to an error."""
    told = as_api_error(error)
    return JSONResponse(told.body, told.status, told.headers)
